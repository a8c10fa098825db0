// Activations that are not fused into the layer before.
#include "functions.h"
#include "activation_layer.h"

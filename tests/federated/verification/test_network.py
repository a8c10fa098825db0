import numpy as np

import edgelearn as el
from edgelearn.data.features import load_features
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.experiments.verification import FRONT_END
from edgelearn.federated.verification import FedUV, speaker_network


def test_every_hidden_unit_learns():
    """With ReLU, many units are 0 for all voices from the start, and their gradient as well."""
    clips = embedded_words(2, 6, 2)
    x = load_features(clips, FRONT_END)[..., None]
    names, owners = np.unique(clips.speakers, return_inverse=True)
    strategy = FedUV()
    vectors = np.stack([strategy.vector(user, 0) for user in range(len(names))])[owners]
    model = el.Model(speaker_network(x.shape[1:]), seed=0).compile(el.SGD(1.0), strategy.loss)
    model.fit(x, vectors, epochs=1, batch_size=len(x))
    assert np.abs(model.weights["hidden/bias"]).min() > 1e-7

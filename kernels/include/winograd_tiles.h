// Tiles of Winograd's filtering (winograd.h) in images, and what a work-item keeps of a chunk of CHUNK tiles.
#include "winograd.h"

// Sizes of the images that tiles are read from and written to, and the padding above and to the left
typedef struct { int images, height, width, out_height, out_width, top, left; } Sizes;
#define SIZES_ARGUMENTS                                                                                       \
  const int images, const int height, const int width, const int out_height, const int out_width, const int top, \
      const int left
#define SIZES ((Sizes){images, height, width, out_height, out_width, top, left})

// The first output pixel of a tile
typedef struct { int image, y, x; } Place;

INLINE int tiles_of(const Sizes s) { return s.images * ((s.out_height + 1) / 2) * ((s.out_width + 1) / 2); }
INLINE Place place_of(const Sizes s, const int tile) {
  const int across = (s.out_width + 1) / 2, down = (s.out_height + 1) / 2;
  return (Place){tile / (across * down), tile / across % down * 2, tile % across * 2};
}

// A block's size x size pixels from (y, x) on; 0 outside the image
INLINE void load_pixels(V *pixels, const int size, input_values plane, const int y, const int x, const int height,
                        const int width) {
  plane += (y * width + x) * BLOCK;
  if (y >= 0 && x >= 0 && y + size <= height && x + size <= width) {
    UNROLL for (int i = 0; i < size; i++) UNROLL for (int j = 0; j < size; j++)
      pixels[i * size + j] = load(plane + (i * width + j) * BLOCK);
  } else {
    UNROLL for (int i = 0; i < size; i++) UNROLL for (int j = 0; j < size; j++) {
      const int inside = y + i >= 0 && y + i < height && x + j >= 0 && x + j < width;
      pixels[i * size + j] = (V)0;
      if (inside) pixels[i * size + j] = load(plane + (i * width + j) * BLOCK);
    }
  }
}

// Memory of a work-item for a chunk of tiles: [POINTS][blocks][CHUNK][16]
INLINE void store_points(output chunk, const int blocks, const int block, const int tile, const V points[POINTS]) {
  UNROLL for (int i = 0; i < POINTS; i++)
    store(chunk + ((size_t)(i * blocks + block) * CHUNK + tile) * BLOCK, points[i]);
}

// Transforms inputs of `count` tiles from `first` on, `blocks` of channels from `block` on
INLINE void transform_inputs(output chunk, input_values x, const Sizes s, const int first, const int count,
                             const int block, const int blocks) {
  for (int b = 0; b < blocks; b++) for (int t = 0; t < count; t++) {
    const Place p = place_of(s, first + t);
    V points[POINTS];
    input_values plane = x + (size_t)((block + b) * s.images + p.image) * s.height * s.width * BLOCK;
    load_pixels(points, 4, plane, p.y - s.top, p.x - s.left, s.height, s.width);
    transform_input(points);
    store_points(chunk, blocks, b, t, points);
  }
}

// Winograd's minimal filtering F(2 x 2, 3 x 3) (Lavin and Gray 2015): 4 outputs of a 3 x 3 convolution from 16 products
// instead of 36. With g the 9 weights, d the 4 x 4 inputs and y the 2 x 2 outputs of a tile,
//   y = A' ((G g G') * (B' d B)) A,  and backward  dg = G' ((B' d B) * (A dy A')) G,
// where * multiplies elements, of which there are 16: `points`. A tensor of transformed tiles is
// [points][channels/16][tiles][16].
#define POINTS 16

// One line of four of B' d
INLINE void transform_line(V *d, const int step) {
  const V a = d[0], b = d[step], c = d[2 * step], e = d[3 * step];
  d[0] = a - c;
  d[step] = b + c;
  d[2 * step] = c - b;
  d[3 * step] = b - e;
}

INLINE void transform_input(V d[POINTS]) {
  UNROLL for (int i = 0; i < 4; i++) transform_line(d + i, 4);
  UNROLL for (int i = 0; i < 4; i++) transform_line(d + 4 * i, 1);
}

// y = A' m A
INLINE void transform_output(const V m[POINTS], V y[4]) {
  V half_way[8];
  UNROLL for (int i = 0; i < 4; i++) {
    half_way[i] = m[i] + m[4 + i] + m[8 + i];
    half_way[4 + i] = m[4 + i] - m[8 + i] - m[12 + i];
  }
  UNROLL for (int i = 0; i < 2; i++) {
    const V *row = half_way + 4 * i;
    y[2 * i] = row[0] + row[1] + row[2];
    y[2 * i + 1] = row[1] - row[2] - row[3];
  }
}

// m = A dy A'
INLINE void transform_output_gradient(const V dy[4], V m[POINTS]) {
  V half_way[8];
  UNROLL for (int i = 0; i < 2; i++) {
    half_way[i] = dy[i];
    half_way[2 + i] = dy[i] + dy[2 + i];
    half_way[4 + i] = dy[i] - dy[2 + i];
    half_way[6 + i] = -dy[2 + i];
  }
  UNROLL for (int i = 0; i < 4; i++) {
    const V a = half_way[2 * i], b = half_way[2 * i + 1];
    m[4 * i] = a;
    m[4 * i + 1] = a + b;
    m[4 * i + 2] = a - b;
    m[4 * i + 3] = -b;
  }
}

// u = G g G'
INLINE void transform_kernel(const V g[9], V u[POINTS]) {
  V half_way[12];
  UNROLL for (int i = 0; i < 3; i++) {
    const V ends = (g[i] + g[6 + i]) * 0.5f, middle = g[3 + i] * 0.5f;
    half_way[i] = g[i];
    half_way[3 + i] = ends + middle;
    half_way[6 + i] = ends - middle;
    half_way[9 + i] = g[6 + i];
  }
  UNROLL for (int i = 0; i < 4; i++) {
    const V *row = half_way + 3 * i;
    const V ends = (row[0] + row[2]) * 0.5f, middle = row[1] * 0.5f;
    u[4 * i] = row[0];
    u[4 * i + 1] = ends + middle;
    u[4 * i + 2] = ends - middle;
    u[4 * i + 3] = row[2];
  }
}

// dg = G' du G
INLINE void transform_kernel_gradient(const V du[POINTS], V dg[9]) {
  V half_way[12];
  UNROLL for (int i = 0; i < 4; i++) {
    const V sum = (du[4 + i] + du[8 + i]) * 0.5f;
    half_way[i] = du[i] + sum;
    half_way[4 + i] = (du[4 + i] - du[8 + i]) * 0.5f;
    half_way[8 + i] = sum + du[12 + i];
  }
  UNROLL for (int i = 0; i < 3; i++) {
    const V *row = half_way + 4 * i;
    const V sum = (row[1] + row[2]) * 0.5f;
    dg[3 * i] = row[0] + sum;
    dg[3 * i + 1] = (row[1] - row[2]) * 0.5f;
    dg[3 * i + 2] = sum + row[3];
  }
}

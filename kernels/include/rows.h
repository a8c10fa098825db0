// A tensor as it lies in memory: EACH_TILE(rows), a row is as many floats as a work-item handles at a time. The zeros that
// pad channels are values like others. A tensor of fewer than 16 channels a block may end within a row, after `rest` of
// its floats. PLAIN: such a tensor pixel by pixel, `rest` channels each, in PIECES rows, none of which may be aligned. Else
// 16 channels have PIECES rows.
#ifndef PLAIN
#define PLAIN 0
#endif
#if PLAIN
#define PIECES ((rest + LANES - 1) / LANES)
#define ROW_START ((size_t)(tile / PIECES) * rest + tile % PIECES * LANES)
#define ROW_END (rest - tile % PIECES * LANES < LANES ? rest - tile % PIECES * LANES : LANES)
#define IS_CUT 1
#else
#define PIECES PARTS
#define ROW_START ((size_t)tile * LANES)
#define ROW_END rest
#define IS_CUT (rest && tile == rows - 1)
#endif
#define LOAD_ROW(v, x)                                                             \
  V v = (V)0;                                                                      \
  if (IS_CUT) { for (int lane = 0; lane < ROW_END; lane++) LANE(v, lane) = (x)[ROW_START + lane]; } \
  else v = LOAD((x) + ROW_START);
// `store` puts a whole row where a pointer says; `type` is that of a value
#define STORE_ROW_AS(type, store, y, v)                                            \
  if (IS_CUT) { for (int lane = 0; lane < ROW_END; lane++) (y)[ROW_START + lane] = (type)LANE(v, lane); } \
  else store((y) + ROW_START, v);
#define STORE_ROW(y, v) STORE_ROW_AS(float, STORE, y, v)

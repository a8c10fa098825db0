// What a launch finds of the values it writes: a record (see quantize.h) for each work-group. With FOUND a kernel notes
// values with NOTE, and what they become with NOTE_BECOMES; at its end all work-items of a group take part in LEAVE_FOUND.
// TRACED adds the sums for signal to noise and cosine. Where a value is a NaN or an infinity, CLIPPED is a NaN. Records
// have 16 fields, however many lanes a work-item handles.
#ifndef FOUND
#define FOUND 0
#endif
#ifndef TRACED
#define TRACED 0
#endif

#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHER(a, b) ((b) > (a) ? (b) : (a))

#define OVER_LANES(combined, vector, how)                                          \
  { float c_ = LANE(vector, 0); for (int i = 1; i < LANES; i++) { const float l_ = LANE(vector, i); c_ = how; } combined = c_; }

typedef float16 Record;
typedef float16 __attribute__((aligned(4))) Record_unaligned;
#define LOAD_RECORD(pointer) (*(__global const Record_unaligned *)(pointer))
#define STORE_RECORD(pointer, record) (*(__global Record_unaligned *)(pointer) = (record))
#define MERGE(into, other)                                                         \
  {                                                                                \
    const Record o_ = (other);                                                     \
    const float low_ = LOWER(LANE(into, LEAST_FOUND), LANE(o_, LEAST_FOUND));      \
    const float high_ = HIGHER(LANE(into, MOST_FOUND), LANE(o_, MOST_FOUND));      \
    into += o_;                                                                    \
    LANE(into, LEAST_FOUND) = low_;                                                \
    LANE(into, MOST_FOUND) = high_;                                                \
  }

#define ADD_RECORD(into, other) into += (other);

// The records `mine` of a work-group's items, a power of two of them, put together by `merge` in its first item.
#if GROUP > 1
#define GROUP_RECORDS __local Record shares_[GROUP / 2];
#define OVER_GROUP(mine, merge)                                                    \
  for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {                             \
    const int me_ = get_local_id(0);                                               \
    if (me_ >= half_ && me_ < 2 * half_) shares_[me_ - half_] = mine;              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
    if (me_ < half_) merge(mine, shares_[me_])                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
  }
#else
#define GROUP_RECORDS
#define OVER_GROUP(mine, merge)
#endif

#if FOUND
#define FOUND_ARGUMENTS , OUTPUT(found), const int values, const int add_found
#define FOUND_POINTERS                                                             \
  INTO_WORDS(found)                                                                \
  NOTHING_FOUND
#define NOTHING_FOUND                                                              \
  V least_ = (V)0, most_ = (V)0, clipped_ = (V)0, signal_ = (V)0, noise_ = (V)0, product_ = (V)0, result_ = (V)0;
#define NOTE(v)                                                                    \
  least_ = LOWER(least_, v);                                                       \
  most_ = HIGHER(most_, v);                                                        \
  clipped_ += (v) - (v);
// v is a value, `exact` its integer less the zero point before rounding, which can be from `lowest` to `highest`
#define NOTE_CLIPPED(exact, lowest, highest)                                       \
  clipped_ += (((exact) < (lowest) - 0.5f) | ((exact) > (highest) + 0.5f)) ? (V)1 : (V)0;
#define IN_LANES(record)                                                           \
  Record record = (Record)0;                                                                 \
  OVER_LANES(LANE(record, LEAST_FOUND), least_, LOWER(c_, l_))                     \
  OVER_LANES(LANE(record, MOST_FOUND), most_, HIGHER(c_, l_))                      \
  OVER_LANES(LANE(record, CLIPPED), clipped_, c_ + l_)                             \
  OVER_LANES(LANE(record, SIGNAL), signal_, c_ + l_)                               \
  OVER_LANES(LANE(record, NOISE), noise_, c_ + l_)                                 \
  OVER_LANES(LANE(record, PRODUCT), product_, c_ + l_)                             \
  OVER_LANES(LANE(record, RESULT), result_, c_ + l_)
#define LEAVE_FOUND                                                                \
  GROUP_RECORDS                                                                    \
  IN_LANES(mine_)                                                                  \
  OVER_GROUP(mine_, MERGE)                                                         \
  if (get_local_id(0) > 0) return;                                                 \
  if (get_group_id(0) == 0) LANE(mine_, COUNT) = values;                           \
  if (add_found) MERGE(mine_, LOAD_RECORD(found + get_group_id(0) * BLOCK))               \
  STORE_RECORD(found + get_group_id(0) * BLOCK, mine_);
#else
#define FOUND_ARGUMENTS
#define FOUND_POINTERS
#define NOTE(v)
#define NOTE_CLIPPED(exact, lowest, highest)
#define LEAVE_FOUND
#endif

#if FOUND && TRACED
#define NOTE_BECOMES(v, w)                                                         \
  signal_ += (v) * (v);                                                            \
  noise_ += ((v) - (w)) * ((v) - (w));                                             \
  product_ += (v) * (w);                                                           \
  result_ += (w) * (w);
#else
#define NOTE_BECOMES(v, w)
#endif

// `tiles` tiles of work: neighbouring ones on CPUs; on GPUs the members of a group take neighbours.
#if GROUP > 1
#define EACH_TILE(tiles) for (int tile = get_global_id(0); tile < (tiles); tile += get_global_size(0))
#else
#define EACH_TILE(tiles)                                                           \
  const int share_ = ((tiles) + (int)get_global_size(0) - 1) / (int)get_global_size(0); \
  const int begin_ = (int)get_global_id(0) * share_, end_ = begin_ + share_ < (tiles) ? begin_ + share_ : (tiles); \
  for (int tile = begin_; tile < end_; tile++)
#endif

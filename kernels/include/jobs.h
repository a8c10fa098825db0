// One launch for many layers (edgelearn/ops/jobs.py). Row j of `table` is a job: its first work-item, where its tensors
// start (in blocks), then its numbers, WORDS words in all. FIND_JOB gives `job`, the row of this work-item, and `item`,
// its number within the job.
#define JOBS INPUT_WORDS(int, table), const int jobs, const int items
#define FIND_JOB(words)                                                           \
  FROM_WORDS(int, table)                                                          \
  if (ITEM >= items) return;                                     \
  int row_ = 0;                                                                   \
  for (int above = jobs; above - row_ > 1;) {                                     \
    const int middle = (row_ + above) / 2;                                        \
    if (table[middle * (words)] <= ITEM) row_ = middle; else above = middle; \
  }                                                                               \
  __global const int *job = table + row_ * (words);                               \
  const int item = ITEM - job[0];
#define JOB_INPUT(x, word) input x = x##_memory + (size_t)job[word] * BLOCK + FIRST_LANE;
#define JOB_OUTPUT(x, word) output x = x##_memory + (size_t)job[word] * BLOCK + FIRST_LANE;
#define JOB_OUTPUT_WORDS(x, word) output x = x##_memory + (size_t)job[word] * BLOCK;

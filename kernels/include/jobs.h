// One launch for many layers (edgelearn/ops/emit.py). Row j of `table` is a job: its first work-item, where its tensors
// start (in units of 64 bytes), then its numbers, `words` words in all. `items` work-items have a job.
#define JOBS INPUT_OF(int, table), const int jobs, const int items

typedef struct { __global const int *words; int item; } Job;  // a row of the table, and this work-item's number in it

INLINE Job find_job(__global const int *table, const int jobs, const int words) {
  int row = 0;
  for (int above = jobs; above - row > 1;) {
    const int middle = (row + above) / 2;
    if (table[middle * words] <= ITEM) row = middle; else above = middle;
  }
  return (Job){table + row * words, ITEM - table[row * words]};
}

// As START and ITEM_START, of the tensor whose offset is a word of the job
#define JOB_START(x, word) START_AT(x, job.words[word])
#define JOB_ITEM_START(x, word) (JOB_START(x, word) + FIRST_CHANNEL)

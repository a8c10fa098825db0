// The row that a number names, negative ones counted from the end; -1 for one that isn't there
INLINE int named_row(const float number, const int size) {
  const float nearest = number < 0.0f ? number - 0.5f : number + 0.5f;
  if (!(nearest > -size - 1.0f && nearest < size)) return -1;
  const int place = (int)nearest;
  return place < 0 ? place + size : place;
}

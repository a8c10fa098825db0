/* The start of a Cortex-M4 or M7 after a reset: data, floating point, main. Symbols are those of board.ld. */
#include <stdint.h>

extern uint32_t el_stack_top, el_data_start, el_data_end, el_data_source, el_bss_start, el_bss_end;
int main(void);
void el_reset(void);
void el_fault(void);

void el_fault(void) {
  for (;;) {
  }
}

void el_reset(void) {
  uint32_t *from = &el_data_source, *to;
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: access to the floating-point unit */
  __asm volatile("dsb\n\tisb");
  for (to = &el_data_start; to < &el_data_end;) *to++ = *from++;
  for (to = &el_bss_start; to < &el_bss_end;) *to++ = 0;
  main();
  el_fault();
}

/* Stack, reset, then the handlers of faults */
__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))&el_stack_top, el_reset, el_fault, el_fault, el_fault, el_fault, el_fault};

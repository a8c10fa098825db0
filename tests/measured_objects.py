"""Objects for workers to hold."""

import os
import time

from edgelearn.errors import PlanError


class Calculator:
    def __init__(self, start=0):
        if start < 0:
            raise PlanError(f"{start} is below 0")
        self.value = start

    def add(self, number):
        print("noise on standard output")
        self.value += number
        return self.value

    def fail(self):
        raise PlanError("no plan")

    def die(self):
        os.write(2, b"out of luck\n")
        os.abort()

    def hang(self):
        time.sleep(60)

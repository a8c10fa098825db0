import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def draw_pictures():
    """draw_pictures(folder): two classes of five noisy pictures, and a file that is none."""

    def draw(folder):
        rng = np.random.default_rng(0)
        for name, color in {"red": (200, 60, 60), "blue": (60, 60, 200)}.items():
            (folder / name).mkdir(parents=True)
            for number in range(5):
                pixels = np.clip(np.array(color) + rng.integers(-40, 40, (40, 50, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
        (folder / "red" / "broken.jpg").write_bytes(b"not a picture")
        return folder

    return draw

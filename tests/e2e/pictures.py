"""PNG, JPEG and RecordIO bytes, written from the definitions of the formats. An image is a list of rows, a row a list of pixels, a
pixel a tuple of 1 or 3 bytes."""

import math
import struct
import zlib

MAGIC = b'\x0a\x23\xd7\xce'


def png(image, filters=(0,)):
    """`filters`: kinds of filter of the rows, again and again; 0 none, 1 left, 2 up."""
    channels = len(image[0][0])
    raw, above = b'', None
    for y, row in enumerate(image):
        kind = filters[y % len(filters)]
        flat = bytes(value for pixel in row for value in pixel)
        near = {0: bytes(len(flat)), 1: bytes(channels) + flat, 2: above or bytes(len(flat))}[kind]
        raw += bytes([kind]) + bytes((a - b) & 255 for a, b in zip(flat, near))
        above = flat

    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

    header = struct.pack('>IIBBBBB', len(image[0]), len(image), 8, 2 if channels == 3 else 0, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(raw)) + chunk(b'IEND', b'')


# Coefficients of 8 x 8 blocks in the order of the file: along the diagonals, to and fro.
ZIGZAG = sorted(((y, x) for y in range(8) for x in range(8)), key=lambda at: (sum(at), at[1 - sum(at) % 2]))
COSINES = [[math.cos((2 * i + 1) * k * math.pi / 16) * (math.sqrt(0.125) if k == 0 else 0.5) for i in range(8)] for k in range(8)]
# Huffman codes of one length each: the code of a symbol is its place in the table.
DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]


class _Bits:

    def __init__(self):
        self.value, self.count = 0, 0

    def put(self, value, count):
        self.value, self.count = self.value << count | value, self.count + count

    def number(self, value, size):
        self.put(value if value > 0 else value + (1 << size) - 1, size)

    def finish(self):
        self.put((1 << -self.count % 8) - 1, -self.count % 8)
        return self.value.to_bytes(self.count // 8, 'big').replace(b'\xff', b'\xff\x00')


def _planes(image):
    if len(image[0][0]) == 1:
        return [[[pixel[0] for pixel in row] for row in image]]
    weights = ((0, 0.299, 0.587, 0.114), (128, -0.168736, -0.331264, 0.5), (128, 0.5, -0.418688, -0.081312))
    return [[[base + r * red + g * green + b * blue for red, green, blue in row] for row in image] for base, r, g, b in weights]


def jpeg(image, step=4):
    """Baseline, every component in every pixel. `step`: what all coefficients are divided by."""
    planes, height, width = _planes(image), len(image), len(image[0])
    bits, before = _Bits(), [0] * len(planes)
    for top in range(0, height, 8):
        for left in range(0, width, 8):
            for c, plane in enumerate(planes):
                block = [[plane[min(top + y, height - 1)][min(left + x, width - 1)] - 128 for x in range(8)] for y in range(8)]
                rows = [[sum(a * b for a, b in zip(COSINES[k], row)) for k in range(8)] for row in block]
                numbers = [round(sum(COSINES[v][y] * rows[y][u] for y in range(8)) / step) for v, u in ZIGZAG]
                difference, before[c] = numbers[0] - before[c], numbers[0]
                size = abs(difference).bit_length()
                bits.put(DC_SYMBOLS.index(size), 4)
                bits.number(difference, size)
                run = 0
                last = max((k for k in range(1, 64) if numbers[k]), default=0)
                for k in range(1, last + 1):
                    if numbers[k] == 0:
                        run += 1
                        continue
                    while run > 15:
                        bits.put(AC_SYMBOLS.index(0xF0), 8)
                        run -= 16
                    size = abs(numbers[k]).bit_length()
                    bits.put(AC_SYMBOLS.index(run << 4 | size), 8)
                    bits.number(numbers[k], size)
                    run = 0
                if last < 63:
                    bits.put(AC_SYMBOLS.index(0x00), 8)

    def segment(kind, data):
        return b'\xff' + bytes([kind]) + struct.pack('>H', 2 + len(data)) + data

    def table(kind, length, symbols):
        return bytes([kind]) + bytes(len(symbols) if i == length else 0 for i in range(1, 17)) + bytes(symbols)

    components = range(1, len(planes) + 1)
    frame = struct.pack('>BHHB', 8, height, width, len(planes)) + b''.join(bytes([c, 0x11, 0]) for c in components)
    scan = bytes([len(planes)]) + b''.join(bytes([c, 0]) for c in components) + bytes([0, 63, 0])
    return (b'\xff\xd8' + segment(0xE0, b'JFIF\0\1\1\0\0\1\0\1\0\0') + segment(0xDB, bytes([0] + [step] * 64)) + segment(0xC0, frame)
            + segment(0xC4, table(0x00, 4, DC_SYMBOLS) + table(0x10, 8, AC_SYMBOLS)) + segment(0xDA, scan) + bits.finish() + b'\xff\xd9')


def record_part(kind, data):
    return MAGIC + struct.pack('<I', kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(data):
    """Cut at each magic number that the data have at a multiple of 4."""
    cuts = [i for i in range(0, len(data) - 3, 4) if data[i:i + 4] == MAGIC]
    parts = [data[begin:end] for begin, end in zip([0] + [i + 4 for i in cuts], cuts + [len(data)])]
    kinds = [0] if len(parts) == 1 else [1] + [2] * (len(parts) - 2) + [3]
    return b''.join(record_part(kind, part) for kind, part in zip(kinds, parts))


def image_data(label, image, number=0):
    return struct.pack('<IfQQ', 0, label, number, 0) + image


def rec(labelled):
    """A .rec file and its .idx of pairs of label and image file."""
    file, index = b'', ''
    for i, (label, image) in enumerate(labelled):
        index += f'{i}\t{len(file)}\n'
        file += record(image_data(label, image, i))
    return file, index

#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets to corpus/<target>/. Every run writes the same bytes.

Only fuzz_papers/certificate-worker is not made here; `capstan certs issue worker` made it.
"""

import gzip
import hashlib
import io
import json
import lzma
import pathlib
import struct
import sys
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import pictures  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent / "corpus"
JOBS = ROOT.parent.parent.parent / "examples"


def write(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def idx_images(count, rows, columns, pixels):
    return struct.pack(">IIII", 0x803, count, rows, columns) + pixels


def idx_labels(count, labels):
    return struct.pack(">II", 0x801, count) + labels


def packed(data):
    return gzip.compress(data, mtime=0)


def idx():
    images = idx_images(2, 2, 3, bytes(range(12)))
    labels = idx_labels(4, bytes([0, 9, 3, 1]))
    record = bytes([7]) + bytes(range(256)) * 12
    cases = {
        "images": (0, images),
        "images-short": (0, images[:-1]),
        "images-empty": (0, idx_images(0, 28, 28, b"")),
        "images-absurd": (0, idx_images(0x7FFFFFFF, 28, 28, b"")),
        "images-wrap": (0, idx_images(0x10000, 0x10000, 0x10000, b"")),
        "labels": (1, labels),
        "labels-ten": (1, idx_labels(1, bytes([10]))),
        "images-gz": (2, packed(images)),
        "images-gz-short": (2, packed(images)[:-9]),
        "images-gz-long": (2, packed(images) + b"x"),
        "images-gz-absurd": (2, packed(idx_images(0x7FFFFFFF, 28, 28, b""))),
        "labels-gz": (3, packed(labels)),
        "labels-gz-zeros": (3, packed(idx_labels(5000, bytes(5000)))),
        "cifar": (4, record * 2),
        "cifar-short": (4, record[:-1]),
        "cifar-label-ten": (4, bytes([10]) + bytes(3072)),
        "cifar-gz": (6, packed(record)),
        "cifar-xz": (12, lzma.compress(record, preset=0)),
        "cifar-xz-short": (12, lzma.compress(record, preset=0)[:-9]),
    }
    for name, (kind, data) in cases.items():
        write("fuzz_idx", name, bytes([kind]) + data)


def npy(descr, shape, numbers, order="False", major=1):
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([major, 0]) + struct.pack("<H" if major == 1 else "<I", len(header)) + header + numbers


def archive(arrays, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = method
            with made.open(info, "w", force_zip64=True) as member:
                member.write(data)
    return file.getvalue()


def tables():
    arrays = {
        "x_train": npy("|u1", "(3, 2, 2)", bytes(range(12))),
        "y_train": npy("<i8", "(3,)", struct.pack("<3q", 5, 0, 9)),
        "x_test": npy("<f4", "(1, 4)", struct.pack("<4f", 0.5, -1, 1e30, 0), major=2),
        "y_test": npy("|u1", "(1, 1)", bytes([7]), major=3),
    }
    whole = archive(arrays)
    libsvm = b"+1 1:0.5 3:-2 \r\n-1 2:1e3 # comment\n+1 4:1\n"
    cases = {
        "npz": (0, whole),
        "npz-packed": (0, archive(arrays, zipfile.ZIP_DEFLATED)),
        "npz-short": (0, whole[:-1]),
        "npz-float64": (0, archive({**arrays, "x_train": npy("<f8", "(3, 1)", struct.pack("<3d", 1, 2, 1e39))})),
        "npz-fortran": (0, archive({**arrays, "x_train": npy("|u1", "(3, 2, 2)", bytes(12), order="True")})),
        "npz-objects": (0, archive({**arrays, "x_train": npy("|O", "(3, 2, 2)", b"cos\nsystem\n.")})),
        "npz-absurd": (0, archive({**arrays, "x_train": npy("|u1", "(4611686018427387904, 9, 9)", bytes(12))})),
        "npz-zeros": (0, archive({**arrays, "x_train": npy("|u1", "(3, 99, 99)", bytes(29403))}, zipfile.ZIP_DEFLATED)),
        "npz-targets": (0, archive({**arrays, "y_train": npy("<f8", "(3, 2)", struct.pack("<6d", 1, -2, 3e38, 0.1, 5, 6)),
                                    "y_test": npy("<f4", "(1, 2)", struct.pack("<2f", 7, 8))})),
        "npz-target-far": (0, archive({**arrays, "y_train": npy("<f8", "(3, 2)", struct.pack("<6d", 1, 2, 1e39, 4, 5, 6))})),
        "csv": (1, b"1,0.5,-2\r\n0,1e3,+4\n\n"),
        "csv-header": (1, b'"class","a ""b""",c\n1, "0.5" ,-2\n'),
        "csv-ragged": (1, b"1,2,3\n1,2\n"),
        "csv-quote": (1, b'1,2\n1,"2\n'),
        "csv-nan": (1, b"1,nan\n"),
        "csv-gz": (5, packed(b"1,2\n" * 3000)),
        "csv-targets": (9, b"price,a\n-0.5,1\n1e3,2\n"),
        "libsvm-targets": (10, b"0.25 1:0.5\n-1e3 2:2\n"),
        "libsvm": (2, libsvm),
        "libsvm-classes": (2, b"3 1:1\n0 2:2\n"),
        "libsvm-far": (2, b"1 1048576:1\n"),
        "libsvm-falling": (2, b"1 2:1 1:1\n"),
        "libsvm-gz": (6, packed(libsvm)),
    }
    for name, (kind, data) in cases.items():
        write("fuzz_tables", name, bytes([kind]) + data)


def image_files():
    def made(height, width, channels):
        return [[tuple((x * (3 + c) + y * 7) % 256 for c in range(channels)) for x in range(width)] for y in range(height)]

    color, grey = made(17, 20, 3), made(9, 16, 1)
    jpeg, png = pictures.jpeg(color), pictures.png(color, filters=(1, 2, 0))
    frame, header = jpeg.index(b"\xff\xc0"), png.index(b"IHDR")
    cases = {
        "jpeg": jpeg,
        "jpeg-grey": pictures.jpeg(grey, step=16),
        "jpeg-short": jpeg[:-30],
        "jpeg-absurd": jpeg[:frame + 5] + b"\xff" * 4 + jpeg[frame + 9:],
        "jpeg-large": jpeg[:frame + 5] + b"\x10\x00\x10\x00" + jpeg[frame + 9:],
        "png": png,
        "png-grey": pictures.png(grey),
        "png-short": png[:-20],
        "png-absurd": png[:header + 4] + b"\x7f\xff\xff\xff" * 2 + png[header + 12:],
        "gif": b"GIF89a",
    }
    for name, data in cases.items():
        write("fuzz_pictures", name, bytes([0x36]) + data)
        write("fuzz_pictures", name + "-small", bytes([0x21]) + data)
    magic = pictures.MAGIC
    records = [pictures.image_data(1, b"first"), pictures.image_data(0, b"abcd" + magic + b"efgh" + magic * 2),
               struct.pack("<IfQQf", 1, 0, 0, 0, 7) + b"x"]
    file = b"".join(map(pictures.record, records))
    cases = {
        "scan": (0, 0, file),
        "scan-short": (0, 0, file[:-5]),
        "scan-labels": (0, 0, pictures.record(struct.pack("<IfQQ2f", 2, 0, 0, 0, 1, 2))),
        "scan-label": (0, 0, pictures.record(pictures.image_data(float("nan"), b""))),
        "scan-long": (0, 0, magic + struct.pack("<I", (1 << 29) - 1) + b"abcd"),
        "index": (1, 2, b"0\t0\n1\t92\n"),
        "index-far": (1, 1, b"0\t0\r\n1\t18446744073709551616\n"),
        "index-odd": (1, 2, b"0\t2\n"),
        "record": (2, 0, file),
        "record-kinds": (2, 0, pictures.record_part(1, b"abcd") + pictures.record_part(2, b"") + pictures.record_part(3, b"e")),
        "record-wrong": (2, 12, pictures.record_part(1, b"abcd") + pictures.record_part(2, b"efgh")),
    }
    for name, (kind, number_of, data) in cases.items():
        write("fuzz_records", name, bytes([kind, number_of]) + data)


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return b"s" + struct.pack("<Q", len(text)) + text + data


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def checkpoint():
    good = {
        "__metadata__": {"format": "pt"},
        "fc.weight": tensor([2, 3], 0, 24),
        "fc.bias": tensor([2], 24, 32),
        "steps": tensor([], 32, 40, "I64"),
    }
    cases = {
        "good": safetensors(good, bytes(40)),
        "padded": safetensors(json.dumps({"a": tensor([1], 0, 4)}).encode() + b"   ", bytes(4)),
        "hole": safetensors({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)),
        "overlap": safetensors({"a": tensor([2], 0, 8), "b": tensor([1], 4, 8)}, bytes(8)),
        "wrap": safetensors({"a": tensor([2**32, 2**32], 0, 8)}, bytes(8)),
        "twice": safetensors(b'{"a":1,"a":2}', b""),
        "deep": safetensors(b"[" * 64, b""),
        "huge": b"s" + struct.pack("<Q", 2**63) + b"{}",
        "escapes": safetensors(b'{"\\u00e9\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    }
    for name, data in cases.items():
        write("fuzz_checkpoint", "safetensors-" + name, data)
    write("fuzz_checkpoint", "json-good", b"j" + struct.pack(">H", 40) + json.dumps(good).encode())
    empty = {"a": tensor([0, 7], 0, 0), "b": tensor([3], 0, 3, "BOOL")}
    write("fuzz_checkpoint", "json-empty", b"j" + struct.pack(">H", 3) + json.dumps(empty).encode())

    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    manifest = {
        "format_version": 2,
        "job_id": "lenet-7k2q",
        "lineage": 3,
        "step": 500,
        "spec_digest": "abc",
        "training_digest": "def",
        "files": [{"name": "weights.safetensors", "size_bytes": 99, "sha256": digest}],
        "weights_sha256": digest,
        "optimizer": "sgd",
        "samples_used": 64000,
        "orders": [4, 9],
        "lead_snapshot": "AAH+/w==",
        "created_by": "0.1.0",
    }
    lines = []
    for key, value in manifest.items():
        text = json.dumps(value)
        if key == "files":
            text = "[" + ",".join("\n    " + json.dumps(file) for file in value) + "\n  ]"
        lines.append(f'  "{key}": {text},\n')
    body = "{\n" + "".join(lines)
    manifest["manifest_sha256"] = hashlib.sha256(body.encode()).hexdigest()
    cases = {
        "good": f'{body}  "manifest_sha256": "{manifest["manifest_sha256"]}"\n}}',
        "version": json.dumps({**manifest, "format_version": 1}),
        "float": json.dumps({**manifest, "step": 1e300}),
        "path": json.dumps(manifest).replace("weights.s", "../s"),
    }
    for name, text in cases.items():
        write("fuzz_checkpoint", "manifest-" + name, f"m{text}\n".encode())


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):  # length-delimited
    return varint(number << 3 | 2) + varint(len(data)) + data


def exchange():
    head = b"\x08\x05" + b"\x10\x04" + b"\x18\x02" + b"\x20\x03" + field(5, struct.pack("<II", 1, 2))
    floats = struct.pack("<8f", *range(8))
    seal = b"\x08\x05\x18\x01\x20\x40" + b"\x29" + struct.pack("<d", 0.5) + b"\x30\x07"
    hello = field(1, b"lenet-7k2q") + field(2, bytes(32)) + b"\x18\x01\x20\x01\x30" + varint(2**64 - 1)
    cases = {
        "frame": field(15, head + field(15, floats)),
        "frame-empty": field(15, head),
        "frame-long": field(15, head + field(15, floats * 40)),
        "payload-first": field(15, field(15, floats) + head),
        "payload-twice": field(15, head + field(15, floats) + field(15, floats)),
        "two-frames": field(15, head + field(15, floats)) + field(15, head),
        "seal": field(2, seal),
        "hello": field(1, hello),
        "unknown": field(14, b"abc") + field(15, head),
        "groups": field(15, b"\x0b" * 100),
    }
    for name, data in cases.items():
        write("fuzz_exchange", "request-" + name, b"\x00\x06" + data)
        write("fuzz_exchange", "response-" + name, b"\x01\x02" + data)


def number(field_number, value):
    return varint(field_number << 3) + varint(value)


def double(field_number, value):
    return varint(field_number << 3 | 1) + struct.pack("<d", value)


def lead_snapshot():
    epoch = number(1, 1) + number(2, 10) + double(3, 7.5) + number(4, 6) + double(5, 0.25)
    second = number(1, 2) + number(2, 4) + double(3, 2.5) + number(4, 3)
    record = number(1, 1) + double(2, 0.75) + double(3, 0.6) + double(4, 0.5) + double(5, 0.7) + double(6, 40) + double(7, 0.25)
    orders = [number(1, 1) + double(2, 0.1) + number(5, 0), number(1, 2) + number(3, 1) + number(5, 2),
              number(1, 5) + number(4, 1) + number(5, 3)]
    middle = number(1, 4) + number(2, 14) + field(5, second) + field(7, record)
    cases = {
        "start": field(5, b""),
        "middle": middle,
        "ending": number(1, 3) + number(2, 10) + field(5, epoch) + field(6, epoch),
        "orders": middle + b"".join(field(8, order) for order in orders) + double(9, 0.1),
        "order-twice": middle + field(8, orders[0]) * 2,
        "scale": middle + number(3, 1) + number(4, 1) + double(10, 32768) + number(11, 1999),
        "nan": middle + double(9, float("nan")) + double(10, float("inf")),
        "absurd": middle.replace(number(2, 14), number(2, 2**64 - 1)) + number(4, 2**31 - 1),
    }
    for name, data in cases.items():
        write("fuzz_lead_snapshot", name, data)


def coordinator():
    def say(node, message):
        return bytes([node, len(message)]) + message

    job = field(1, b"j")
    file = field(1, b"shard-0.safetensors") + number(2, 40) + field(3, bytes(32))
    files = number(1, 1) + number(2, 5) + field(3, file)

    def shard(index, *parts):
        state = job + number(2, index) + number(3, 1) + number(4, 5) + number(5, 1) + b"".join(parts)
        return say(2 + index, field(2, field(2, state)))

    def task(rank, *parts):
        return say(rank, field(2, field(1, job + number(2, rank) + number(3, 1) + number(4, 1) + b"".join(parts))))

    lead = number(1, 1) + number(2, 5) + number(6, 80) + number(13, 1) + number(14, 3)
    waiting = number(1, 5) + number(2, 3) + number(3, 2) + number(4, 4) + number(5, 1)
    pause, manifest = bytes([2 << 2, 1, 200]), bytes([3 << 2, 0])
    cases = {
        "checkpoint": shard(0, field(9, files), field(11, lead)) + shard(1, field(9, files.replace(b"shard-0", b"shard-1"))) + manifest,
        "waiting": shard(0, field(10, waiting), field(11, lead)) + pause * 4,
        "complete": shard(0, field(11, lead + number(8, 1))) + task(0, number(5, 3), field(10, files), field(11, b"a" * 64)) + manifest,
        "suspended": shard(0, field(11, lead + number(15, 1))) + pause,
        "task-failed": task(0, number(5, 4), field(7, b"GpuOutOfMemory"), field(8, b"why"), number(9, 2**64 - 9)) + pause * 2,
        "shard-failed": shard(1, field(7, b"CheckpointCorrupt"), field(8, b"why")) + pause,
        "nonfinite": shard(0, field(11, lead + field(9, b"NonFiniteLoss") + field(10, b"step 5"))),
        "lost": bytes([1 << 2, 0]) + bytes([1 << 2 | 2, 0]) + pause * 9,
        "logs": say(0, field(4, job + field(2, number(2, 1) + field(5, b"info") + field(6, b"text")) + number(3, 7))),
        "probe": say(0, field(3, number(1, 1) + job + field(4, b"DataMissing") + field(5, b"no"))),
        "register": say(0, field(1, field(1, b"n0") + number(2, 1) + number(7, 1))),
        "absurd": shard(0, field(11, number(1, 1) + number(2, 2**63 - 1) + number(6, 2**64 - 1) + number(13, 2**63))),
    }
    # Calls of callers.
    def spec(resources, kvstore):
        return (number(1, 1) + field(2, b"a") + resources + field(6, field(1, b"lenet"))
                + field(7, field(2, b"synthetic_digits") + number(6, 80) + number(7, 20)) + field(8, field(1, kvstore))
                + field(9, number(2, 10) + number(5, 16) + field(7, field(1, b"sgd") + double(2, 0.1))))

    submit, order, cancel, along = 4 << 2, 5 << 2, 6 << 2, bytes([7 << 2, 0])
    shards, local = spec(field(5, number(1, 2) + number(5, 2)), b"dist_sync"), spec(b"", b"local")
    cases.update({
        "submit": say(submit, shards) + say(cancel, b"j") + pause * 2 + along * 2,
        "submit-local": say(submit, local) + say(submit, local) + along + pause,
        "submit-empty": say(submit, b"") + say(submit, number(1, 1)),
        "suspend": say(order, b"\x00" + job) + cases["suspended"] + cases["checkpoint"] + pause * 3
                   + say(order + 1, b"\x00" + job + number(2, 1) + number(3, 1)) + along,
        "retry": say(cancel, b"j") + pause * 9 + say(order + 2, b"\x00" + job) + along,
        "update": say(order + 3, b"\x00" + job + double(2, 0.5) + number(3, 7) + number(4, 1)) + cases["waiting"],
        "others": b"".join(say(order + which, b"\x03" + job) for which in range(4)),
        "drain": say(cancel + 1, b"") + pause * 3 + say(cancel + 1, b"x") + say(cancel + 3, b"") + along,
    })
    for name, data in cases.items():
        write("fuzz_coordinator", name, data)


def papers():
    token = {"sha256": "ab" * 32, "role": "worker", "name": "node-a", "expires": "2027-11-21T09:14:03Z"}
    tokens = {
        "good": {"version": 1, "tokens": [token]},
        "none": {"version": 1, "tokens": []},
        "twice": {"version": 1, "tokens": [token, token]},
        "unknown": {"version": 1, "tokens": [{**token, "more": 1}]},
        "kinds": {"version": 1e9, "tokens": [{**token, "name": ["a"]}]},
    }
    for name, table in tokens.items():
        write("fuzz_papers", "tokens-" + name, b"\x00" + json.dumps(table).encode())
    write("fuzz_papers", "tokens-deep", b"\x00" + b"[" * 200)
    write("fuzz_papers", "tokens-version", b'\x00{"version": "1", "tokens": []}')
    write("fuzz_papers", "token", b"\x03capstan_" + b"a" * 43 + b"\n")
    write("fuzz_papers", "certificate", b"\x01-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
    addresses = {"tcp": b"host:7070", "v6": b"[::1]:0", "unix": b"unix:///a/b", "port": b"h:65536", "empty": b":1",
                 "brackets": b"[[\xff]:0", "slashes": b"unix:////a"}
    for name, text in addresses.items():
        write("fuzz_papers", "address-" + name, b"\x02" + text)
    headers = {"bearer": b"Bearer capstan_abc", "cookie": b"a=b; capstan_token=x=y ;c", "none": b";=;capstan_tokens="}
    for name, text in headers.items():
        write("fuzz_papers", "headers-" + name, b"\x04" + text)


def launch():
    bundle = {"role": "worker", "name": "w0", "address": "10.0.0.2", "coordinator": "10.0.0.1:7070", "folder": "",
              "authority": "-----BEGIN\n", "certificate": "c", "key": "k", "token": "t", "tokens": "{}",
              "workers_of_host": 2, "nodes": 1, "env": ["A=b c"]}
    bundles = {"good": bundle, "count": {**bundle, "nodes": 1e300}, "kinds": {**bundle, "env": {"a": 1}}}
    for name, value in bundles.items():
        write("fuzz_launch", "bundle-" + name, b"\x00bundle 3 " + json.dumps(value).encode())
    write("fuzz_launch", "bundle-deep", b"\x00bundle 3 " + b"[" * 500)
    write("fuzz_launch", "bundle-not-utf8", b"\x00bundle 3 " + json.dumps(bundle).encode().replace(b"10.0.0.2", b"10\xff"))
    for kind in ("hello 10.0.0.2 node-b", "out a line", "end exit code 1", "other"):
        write("fuzz_launch", "line-" + kind.split()[0], b"\x01capstan-node 12 " + kind.encode())
    for name, text in {"qsub": "12.1-3:1\n", "qstat": "a\nerror reason 1: no\n", "gone": "Following jobs do not exist: 7\n"}.items():
        write("fuzz_launch", name, b"\x02" + text.encode())


def gradient():
    """A chunk of each format of training/compress: format, floats - 1, ratio, words."""
    words = bytes(range(64)) * 2
    for encoding, name in enumerate(("none", "fp16", "bf16", "int8", "2bit", "1bit")):
        write("fuzz_gradient", name, bytes((encoding, 19, 0, 63)) + words)
    write("fuzz_gradient", "top_k", bytes((6, 7, 0, 63)) + struct.pack("<2I2f", 1, 6, -2.5, 0.5))


def graph():
    def attribute(name, value):
        if isinstance(value, int):
            data = number(2, value % 2**64)
        elif isinstance(value, float):
            data = double(3, value)
        elif isinstance(value, str):
            data = field(4, value.encode())
        else:
            data = field(5, field(1, b"".join(varint(item % 2**64) for item in value)))
        return field(4, field(1, name.encode()) + data)

    def node(name, op, *inputs, **attributes):
        return field(2, field(1, name.encode()) + field(2, op.encode()) + b"".join(field(3, i.encode()) for i in inputs)
                     + b"".join(attribute(*item) for item in attributes.items()))

    head = node("flatten", "Flatten") + node("fc", "Gemm", out_features=10) + node("loss", "SoftmaxCrossEntropyLoss")
    conv = node("conv", "Conv", out_channels=4, kernel_shape=[3, 3], auto_pad="SAME_UPPER", bias=0)
    block = (conv + node("bn", "BatchNormalization", epsilon=1e-3, momentum=1) + node("relu", "Relu")
             + node("conv2", "Conv", "relu", out_channels=4, kernel_shape=[3, 1], pads=[1, 0, 1, 0], strides=[1, 1], dilations=[1, 1], group=2)
             + node("add", "Add", "conv2", "relu") + node("sum", "Sum", "add", "add", "conv") + node("cat", "Concat", "sum", "conv", axis=-3))
    pools = (node("max", "MaxPool", kernel_shape=[2, 2], strides=[2, 2]) + node("mean", "AveragePool", kernel_shape=[3, 3], count_include_pad=1, auto_pad="SAME_LOWER")
             + node("gelu", "Gelu", approximate="tanh") + node("drop", "Dropout", ratio=0.25) + node("all", "GlobalAveragePool"))
    tokens = (node("tokens", "Reshape", shape=[-1, 1]) + node("place", "Parameter", shape=[1, 4], init="initializer") + node("grid", "Mul", "tokens", "place")
              + node("turned", "Transpose", perm=[2, 1]) + node("scores", "MatMul", "grid", "turned") + node("softmax", "Softmax", axis=-1)
              + node("norm", "LayerNormalization", axis=1, epsilon=1e-3) + node("slice", "Slice", starts=[-1], ends=[-2**63], axes=[2], steps=[-2])
              + node("pad", "Pad", pads=[1, 0, -1, 2], value=0.5) + node("mean", "ReduceMean", axes=[1], keepdims=0) + node("clip", "Clip", min=-1.0, max=1.0))
    cases = {
        "least": head,
        "tokens": tokens + head,
        "ends": field(1, b"image") + node("flatten", "Flatten", "image") + head[len(node("flatten", "Flatten")):] + field(3, b"loss"),
        "block": block + head,
        "pools": pools + head,
        "reshape": node("reshape", "Reshape", shape=[0, -1]) + head,
        "absurd": node("conv", "Conv", out_channels=2**62, kernel_shape=[2**62, 1], pads=[2**40] * 4, strides=[2**62, 2**62]) + head,
        "padded": node("conv", "Conv", out_channels=1, kernel_shape=[1, 1], pads=[2**21] * 4, strides=[2**21, 2**21]) + head,
        "cycle": node("a", "Relu", "b") + node("b", "Relu", "a") + head,
        "itself": node("a", "Relu", "a") + head,
        "names": node("a\x1b[2J", "Relu\n", "\u009b") + head,
        "twice": node("fc", "Relu") + head,
        "kinds": node("fc", "Gemm", out_features="ten", bias=[1]) + head,
        "unread": node("a", "Relu") + node("b", "Relu", "input") + head,
        "unknown": field(9, b"abc") + head,
        "empty": b"",
    }
    for name, data in cases.items():
        write("fuzz_graph", name, data)


def onnx():
    def attribute(name, value):
        if isinstance(value, int):
            data = number(3, value % 2**64) + number(20, 2)
        elif isinstance(value, float):
            data = varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
        elif isinstance(value, str):
            data = field(4, value.encode()) + number(20, 3)
        elif isinstance(value, bytes):
            data = field(5, value) + number(20, 4)
        else:
            data = field(8, b"".join(varint(item % 2**64) for item in value)) + number(20, 7)
        return field(5, field(1, name.encode()) + data)

    def node(op, inputs, output, name="", **attributes):
        return field(1, b"".join(field(1, i.encode()) for i in inputs.split()) + field(2, output.encode()) + field(3, name.encode())
                     + field(4, op.encode()) + b"".join(attribute(*item) for item in attributes.items()))

    def value(place, name, *dims):
        shape = b"".join(field(1, field(2, dim.encode()) if isinstance(dim, str) else number(1, dim % 2**64)) for dim in dims)
        return field(place, field(1, name.encode()) + field(2, field(1, number(1, 1) + field(2, shape))))

    def data(name, dims, values, kind=1, raw=True):
        codes = {1: "f", 7: "q", 10: "e", 11: "d", 16: "H"}
        listed = field(4, struct.pack(f"<{len(values)}f", *values)) if kind == 1 else field(7, b"".join(varint(v % 2**64) for v in values))
        body = field(9, struct.pack(f"<{len(values)}{codes[kind]}", *values)) if raw else listed
        return b"".join(number(1, dim % 2**64) for dim in dims) + number(2, kind) + body + field(8, name.encode())

    def tensor_of(name, dims, values, kind=1, raw=True):
        return field(5, data(name, dims, values, kind, raw))

    def model(version, graph):
        return number(1, 8) + field(7, graph) + field(8, number(2, version))

    image = value(11, "x", "N", 2, 3, 3) + value(12, "y", "N", 4)
    conv = tensor_of("c.weight", (2, 2, 2, 2), range(16)) + tensor_of("c.bias", (2,), (1, -1), raw=False)
    scale = b"".join(tensor_of(name, (2,), (1, 2)) for name in "sbmv")
    layers = (node("Conv", "x c.weight c.bias", "1", "/c/Conv", kernel_shape=[2, 2], pads=[0, 0, 1, 1], strides=[1, 1], dilations=[1, 1], group=1)
              + node("BatchNormalization", "1 s b m v", "2", epsilon=1e-3, momentum=0.75) + node("Relu", "2", "3")
              + node("MaxPool", "3", "4", kernel_shape=[2, 2], ceil_mode=1) + node("AveragePool", "3", "5", kernel_shape=[2, 2], auto_pad="VALID")
              + node("Concat", "4 5", "6", axis=1))
    ends = (node("Dropout", "6 ratio", "7") + node("Flatten", "7", "8", axis=1) + node("Gemm", "8 w b4", "9", "fc", transB=1, alpha=0.5)
            + node("LogSoftmax", "9", "y", axis=1))
    whole = conv + scale + tensor_of("ratio", (), (0.25,)) + tensor_of("w", (4, 16), range(64), 10) + tensor_of("b4", (1, 4), range(4), 11)
    row = value(11, "x", 1, 4)
    folded = (tensor_of("c", (1, 8), range(8), 16) + tensor_of("s", (2,), (2, -1), 7) + tensor_of("n", (1,), (2,), 7, raw=False) + tensor_of("a", (1,), (0,), 7)
              + node("Reshape", "c s", "r") + node("Transpose", "r", "t", perm=[1, 0]) + node("MatMul", "x t", "m")
              + node("ConstantOfShape", "n", "f", value=data("", (1,), (3,))) + node("Add", "m f", "g") + node("Constant", "", "k", value_ints=[-1, 2, 1, 1])
              + node("Reshape", "g k", "i") + node("GlobalAveragePool", "i", "j") + node("Identity", "j", "y"))
    row_out = row + value(12, "y")
    lists = b"".join(tensor_of(name, (len(numbers),), numbers, 7) for name, numbers in
                     {"z": [0], "o": [1], "t": [2], "n": [-1], "p": [0, 1, 0, 2], "h": [2, 2]}.items())
    parts = (lists + tensor_of("lw", (4,), range(4)) + tensor_of("lb", (4,), (1, 1, 1, 1)) + tensor_of("k", (2,), (3, 4)) + tensor_of("q", (), (0.5,))
             + tensor_of("tok", (1, 2), (5, 6)) + node("Shape", "x", "sh") + node("Slice", "sh z o", "b") + node("Concat", "b n", "tg", axis=0)
             + node("Reshape", "x tg", "r") + node("LayerNormalization", "r lw lb", "l", epsilon=1e-3)
             + field(1, field(1, b"l") + field(1, b"h") + field(2, b"a") + field(2, b"c") + field(4, b"Split") + attribute("axis", 1))
             + node("Mul", "a k", "d") + node("Pad", "c p q", "e") + node("Slice", "e o t o", "f") + node("Gather", "e o", "g", axis=1)
             + node("Concat", "b t", "to", axis=0) + node("Expand", "tok to", "ex") + node("Concat", "d f g ex", "i", axis=1) + node("Mul", "t o", "to2")
             + node("ReduceSum", "i o", "s", keepdims=1) + node("Sqrt", "q", "sq") + node("Div", "s sq", "y"))
    # A layer, a matrix of two readers, and whole numbers.
    linear = (tensor_of("s", (3,), (-1, 2, 2), 7) + tensor_of("w", (3, 2), range(6)) + tensor_of("b", (3,), (1, 2, 3)) + tensor_of("u", (3, 2), range(6))
              + node("Reshape", "x s", "r") + node("Transpose", "w", "wt", perm=[1, 0]) + node("MatMul", "r wt", "m") + node("Add", "m b", "a")
              + node("MatMul", "a u", "p") + node("Transpose", "u", "ut", perm=[1, 0]) + node("MatMul", "p ut", "q") + node("Cast", "q", "i", to=7)
              + node("Div", "i i", "d") + node("ReduceMean", "d", "y", axes=[2], keepdims=0))
    cases = {
        "linear": model(17, row_out + linear),
        "parts": model(17, row_out + parts),
        "two_inputs": model(20, row_out + value(11, "u", 1, 2, 2) + value(12, "v") + node("Relu", "u", "v") + node("Softmax", "x", "y", axis=1)),
        "whole": model(17, image + whole + layers + ends),
        "folded": model(13, row_out + folded),
        "old": model(6, row_out + tensor_of("w", (4, 2), range(8)) + tensor_of("b", (2,), (1, 2)) + node("MatMul", "x w", "m") + node("Add", "m b", "y", broadcast=1, axis=1)),
        "residual": model(20, row_out + node("Gelu", "x", "g", approximate="tanh") + node("Add", "g x", "a") + node("Sum", "a g x", "y")),
        "shapes": model(12, row_out + node("Unsqueeze", "x", "u", axes=[2, 3]) + node("Squeeze", "u", "s", axes=[-1]) + node("Flatten", "s", "y", axis=-2)),
        "cycle": model(17, row_out + node("Relu", "b", "a") + node("Relu", "a", "b") + node("Relu", "b", "y")),
        "dims": model(17, row_out + tensor_of("w", (2**62, 2**62), ()) + node("MatMul", "x w", "y")),
        "negative": model(17, row_out + tensor_of("w", (-2, -2), (1, 2, 3, 4)) + node("MatMul", "x w", "y")),
        "external": model(17, row_out + field(5, number(1, 4) + number(2, 1) + field(8, b"w") + field(13, b"") + number(14, 1)) + node("MatMul", "x w", "y")),
        "subgraph": model(17, row_out + field(1, field(1, b"x") + field(2, b"y") + field(4, b"If") + field(5, field(1, b"then_branch") + field(6, b"") + number(20, 5)))),
        "names": model(17, row_out + node("Relu", "x", "\u009b", "a\x1b[2J") + node("Relu", "\u009b", "y", "///")),
        "group": b"\x3b\x3c",
        "empty": b"",
    }
    for name, bytes_of in cases.items():
        write("fuzz_onnx", name, bytes_of)


JOB_HEAD = """version: 1
name: a
resources: {num_workers: 3, num_shards: 2, lanes: 8}
model: {name: lenet}
data: {format: synthetic_digits, train_samples: 2000, test_samples: 500}
training:
"""


def job_file():
    for path in sorted(JOBS.glob("*.yaml")):
        write("fuzz_job_file", path.stem, path.read_bytes())
    sgd = "  optimizer: {name: sgd, learning_rate: 0.04, momentum: 0.9}\n"
    cases = {
        "max-steps": JOB_HEAD + "  {epochs: 3, max_steps: 60, global_batch_size: 64, optimizer: {name: sgd, learning_rate: 1e-2}}\n",
        "texts": JOB_HEAD + "  epochs: 1\n  batch_size_per_gpu: 64\n" + sgd
                 + 'description: "a \\"b\\" # \\u00e9"\nlabels: {a: "1", b: x y, "c:d": \'#\'}\n',
        "escapes": JOB_HEAD + "  epochs: 1\n  batch_size_per_gpu: 64\n" + sgd + 'description: "a\\nb\\t\\0\\x04\\r"\n',
        "escapes-no-utf8": JOB_HEAD + "  epochs: 1\n  batch_size_per_gpu: 64\n" + sgd + 'description: "a\\_\\N"\n',
        "schedules": JOB_HEAD + "  epochs: 4\n  global_batch_size: 64\n"
                     + "  optimizer: {name: sgd, learning_rate: 0.1, lr_schedule: {name: step, every: 2 epochs, factor: 0.1, warmup: 50 steps}}\n",
        "limits": JOB_HEAD + "  epochs: 1\n  global_batch_size: 64\n" + sgd + "limits: {active_deadline: 90s, stall_timeout: 5m}\n",
        "weights": JOB_HEAD.replace("lanes: 8", "lanes: 2, lane_weights: [3, 1]") + "  epochs: 1\n  global_batch_size: 64\n" + sgd,
        "shards-of-one": JOB_HEAD.replace("num_workers: 3", "num_workers: 1") + "  epochs: 1\n  global_batch_size: 64\n" + sgd,
        "unknown": JOB_HEAD + "  epoches: 3\n",
        "twice": JOB_HEAD + "  epochs: 3\n  epochs: 4\n",
        "anchor": "a: &x [*x]\n",
        "numbers": "version: 0x1\nname: 010\ntraining: {epochs: .nan, seed: 18446744073709551616, optimizer: {learning_rate: -.inf}}\n",
        "deep": "[" * 64,
        "two": "a: 1\n---\nb: 2\n",
        "dropout": JOB_HEAD.replace("name: lenet}", "name: lenet, dropout: 0.5}") + "  epochs: 1\n  global_batch_size: 64\n" + sgd,
        "graph": JOB_HEAD.replace("{name: lenet}", "\n  graph:\n    nodes:\n"
                                  "    - {name: conv, op: Conv, attributes: {out_channels: 4, kernel_shape: [3, 3], auto_pad: SAME_UPPER, bias: false}}\n"
                                  "    - {name: relu, op: Relu}\n    - {name: add, op: Add, inputs: [conv, relu]}\n    - {name: flat, op: Flatten}\n"
                                  "    - {name: fc, op: Gemm, attributes: {out_features: 10}}\n"
                                  "    - {name: loss, op: SoftmaxCrossEntropyLoss, attributes: {label_smoothing: 1e-1}}")
                 + "  epochs: 1\n  global_batch_size: 64\n" + sgd,
    }
    for name, text in cases.items():
        write("fuzz_job_file", name, text.encode())
    write("fuzz_job_file", "not-utf8", (JOBS / "lenet-d2l.yaml").read_bytes().replace(b"uri: /data", b"uri: /\x9c\xa7"))


if __name__ == "__main__":
    coordinator()
    exchange()
    gradient()
    graph()
    idx()
    image_files()
    job_file()
    launch()
    lead_snapshot()
    onnx()
    checkpoint()
    papers()
    tables()

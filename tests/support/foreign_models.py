"""What other programs would have written: TensorFlow checkpoints, vocabularies, models with random weights.

A module of its own, for tests of several folders; they run it by its path.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from electra.model.encoder import Encoder, initialise
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig, generator_config

TYPE_NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bool": 10, "float16": 19}
MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
ENTRIES_PER_RESTART = 16


def crc_of_byte(byte: int) -> int:
    """Bit by bit, as the definition has it."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_OF_BYTE = [crc_of_byte(byte) for byte in range(256)]


def slow_crc(data: bytes) -> int:
    """CRC-32C byte by byte."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = remainder >> 8 ^ CRC_OF_BYTE[remainder & 0xFF ^ byte]
    return remainder ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> bytes:
    checksum = slow_crc(data)
    return ((((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value % (1 << 64)) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def make_entry(
    type_number: int, shape: Iterable[int], *, shard: int = 0, start: int = 0, size: int, crc: bytes
) -> bytes:
    """BundleEntryProto."""
    sizes = b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    numbers = b"".join(number_field(key, value) for key, value in ((3, shard), (4, start), (5, size)))
    return number_field(1, type_number) + bytes_field(2, sizes) + numbers + varint(6 << 3 | 5) + crc


def make_header(num_shards: int = 1) -> bytes:
    """BundleHeaderProto: number of data files, little-endian, version 1."""
    return number_field(1, num_shards) + bytes_field(3, number_field(1, 1))


def make_block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Entries with what keys share left out, and the places where keys are whole."""
    content, restarts, last = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % ENTRIES_PER_RESTART == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    numbers = [*(restarts or [0]), len(restarts or [0])]
    return bytes(content) + b"".join(number.to_bytes(4, "little") for number in numbers)


def seal(block: bytes, kind: int = 0) -> bytes:
    """A block with its kind and checksum."""
    return block + bytes([kind]) + masked_crc(block + bytes([kind]))


def make_table(blocks: Iterable[bytes], *, kind: int = 0) -> bytes:
    """Whole table of blocks, whatever they hold."""
    table, places = b"", []
    for number, block in enumerate(blocks):
        places.append((number.to_bytes(4, "big"), varint(len(table)) + varint(len(block))))
        table += seal(block, kind)
    ends = b""
    for block in (make_block([]), make_block(places)):
        ends += varint(len(table)) + varint(len(block))
        table += seal(block)
    return table + ends.ljust(40, b"\0") + MAGIC


def write_bundle(
    prefix: Path, arrays: Mapping[str, np.ndarray], *, num_shards: int = 1, per_block: int = 40
) -> None:
    """PREFIX.index and its data files, variables dealt out to them in turn."""
    shards = [bytearray() for _ in range(num_shards)]
    entries = [(b"", make_header(num_shards))]
    for number, (name, array) in enumerate(sorted(arrays.items(), key=lambda item: item[0].encode())):
        data, shard = array.tobytes(), number % num_shards
        entry = make_entry(
            TYPE_NUMBERS[array.dtype.name],
            array.shape,
            shard=shard,
            start=len(shards[shard]),
            size=len(data),
            crc=masked_crc(data),
        )
        entries.append((name.encode(), entry))
        shards[shard] += data
    blocks = [make_block(entries[first : first + per_block]) for first in range(0, len(entries), per_block)]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.index").write_bytes(make_table(blocks))
    for number, content in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05}-of-{num_shards:05}").write_bytes(content)


def write_vocabulary(path: Path, size: int) -> Path:
    """A vocab.txt of lower-case words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "."]
    letters = [f"{mark}{chr(97 + letter)}" for mark in ("", "##") for letter in range(26)]
    words = [f"w{number}" for number in range(size)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*special, *letters, *words][:size]) + "\n", encoding="utf-8")
    return path


def tiny_sizes(**changes: int) -> tuple[EncoderConfig, EncoderConfig]:
    """A discriminator as wide as one head, and a generator of a quarter of its width."""
    values = {"vocab_size": 70, "embedding_size": 8, "hidden_size": 64, "intermediate_size": 48}
    more = {"num_hidden_layers": 2, "num_attention_heads": 1, "max_position_embeddings": 12}
    discriminator = EncoderConfig(**{**values, **more, **changes})
    return discriminator, generator_config(discriminator, width=0.25)


def build_model(discriminator: EncoderConfig, generator: EncoderConfig, *, seed: int = 0) -> nn.ModuleDict:
    """Both encoders, sharing embeddings, with their heads; no two weights are alike."""
    encoder = Encoder(discriminator)
    model = nn.ModuleDict(
        {
            "generator": Encoder(generator, embeddings=encoder.embeddings),
            "generator_head": GeneratorHead(generator),
            "discriminator": encoder,
            "discriminator_head": DiscriminatorHead(discriminator),
        }
    )
    random = torch.Generator().manual_seed(seed)
    initialise(model, std=0.05, generator=random)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=random)
    return model.eval()

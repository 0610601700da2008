"""The numbers that protect a release: ChaCha20 as RFC 8439 has it, and the laws they follow."""

import hashlib

import numpy as np
import pytest
from scipy import stats

from seepage.support.keyed_stream import KeyedStream

# RFC 8439, appendix A.1: key, block counter, keystream; the nonce is zero in all of them.
VECTORS = (
    (
        bytes(32),
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes([0, 255]) + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
)


@pytest.mark.parametrize(("key", "block", "keystream"), VECTORS)
def test_the_words_are_those_of_rfc_8439(key, block, keystream):
    words = KeyedStream(key).words(8 * (block + 1))[-8:]
    assert words.tobytes().hex() == keystream


def test_a_stream_can_be_cut_anywhere():
    stream = KeyedStream.fresh()
    np.testing.assert_array_equal(stream.words(5), stream.words(50)[:5])
    np.testing.assert_array_equal(stream.standard_normal(6), stream.standard_normal(60)[:6])


def test_seeds_that_agree_in_their_low_bits_give_other_numbers():
    low = KeyedStream.of_seed(7)
    for shift in (32, 48, 62):
        high = KeyedStream.of_seed(7 + (1 << shift))
        assert not np.any(low.standard_normal(100) == high.standard_normal(100))


def test_names_are_told_apart():
    run = KeyedStream.of_seed(0)
    names = [("a",), ("a", 1), ("a", "1"), ("a1",), (1, "a"), ("a", 1, ""), ("a\0int:1",)]
    assert len({run.child(*name).key for name in names}) == len(names)


def test_a_child_tells_nothing_of_the_key():
    run = KeyedStream.of_seed(0)
    child = run.child("noise").key
    assert child != run.key
    assert child != hashlib.blake2b(b'["noise"]', digest_size=32).digest()


def test_fresh_keys_differ():
    assert len({KeyedStream.fresh().key for _ in range(50)}) == 50


def test_a_key_has_its_length():
    with pytest.raises(ValueError, match="32 bytes, not 4"):
        KeyedStream(b"four")


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda stream: stream.standard_normal(200_000), stats.norm),
        (lambda stream: stream.laplace(size=200_000), stats.laplace),
        (lambda stream: stream.uniform(200_000), stats.uniform),
    ],
)
def test_numbers_follow_their_law(draw, law):
    found = draw(KeyedStream.of_seed(1))
    assert stats.kstest(found, law.cdf).pvalue > 1e-3
    # The tails by themselves, where noise protects or does not.
    for share in (1e-2, 1e-3):
        for count in (np.sum(found < law.ppf(share)), np.sum(found > law.isf(share))):
            assert stats.binomtest(int(count), len(found), share).pvalue > 1e-4


def test_normals_do_not_depend_on_one_another():
    found = KeyedStream.of_seed(2).standard_normal(200_001)
    for lag in (1, 2, 3, 8, 16):
        assert abs(np.corrcoef(found[:-lag], found[lag:])[0, 1]) < 4 / np.sqrt(len(found))
        assert abs(np.corrcoef(found[:-lag] ** 2, found[lag:] ** 2)[0, 1]) < 4 / np.sqrt(len(found))


def test_shapes():
    stream = KeyedStream.of_seed(3)
    assert stream.standard_normal((3, 5)).shape == (3, 5)
    assert stream.laplace(size=(2, 1, 4)).shape == (2, 1, 4)
    assert stream.standard_normal(0).shape == (0,)

#include "training/codec/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace capstan::training {
namespace {

// FIPS 180-4 examples, as NIST publishes them.
TEST(Sha256Test, VectorsOfNist) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, AMillionLettersInUnevenPieces) {
  Sha256 hash;
  const std::string piece(999, 'a');
  int left = 1000000;
  while (left > 0) {
    const int take = left < 999 ? left : 999;
    hash.Update(piece.data(), take);
    left -= take;
  }
  EXPECT_EQ(hash.FinishHex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, IsAsNewAfterFinishAndMoves) {
  Sha256 hash;
  hash.Update("something else");
  hash.Finish();
  hash.Update("ab");
  Sha256 moved = std::move(hash);
  moved.Update("c");
  EXPECT_EQ(moved.FinishHex(), Sha256Hex("abc"));
}

TEST(Sha256Test, KnowsItsOwnForm) {
  EXPECT_TRUE(IsSha256Hex(Sha256Hex("x")));
  EXPECT_FALSE(IsSha256Hex(""));
  EXPECT_FALSE(IsSha256Hex(std::string(63, 'a')));
  EXPECT_FALSE(IsSha256Hex(std::string(64, 'A')));
}

TEST(WeightsSha256Test, HashesLittleEndianFloatsInOrder) {
  // 1.0f is 0x3f800000, -2.0f is 0xc0000000, 0.5f is 0x3f000000.
  const std::vector<float> weight = {1.0f, -2.0f};
  const std::vector<float> bias = {0.5f};
  const std::string bytes("\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f", 12);
  EXPECT_EQ(WeightsSha256({weight, bias}), Sha256Hex(bytes));
  EXPECT_NE(WeightsSha256({bias, weight}), Sha256Hex(bytes));
}

}  // namespace
}  // namespace capstan::training

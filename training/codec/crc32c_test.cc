#include "training/codec/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace capstan::training {
namespace {

// The definition, one bit at a time (reflected polynomial 0x82F63B78).
uint32_t BitwiseCrc32c(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
  }
  return ~crc;
}

// RFC 3720, appendix B.4 (the RFC prints the CRC bytes in the order of the wire).
TEST(Crc32cTest, VectorsOfRfc3720) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string up(32, 0), down(32, 0);
  for (int i = 0; i < 32; ++i) {
    up[i] = static_cast<char>(i);
    down[i] = static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc32c(up), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(down), 0x113FDB5Cu);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);  // the check value of the CRC catalogue
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, AnyLengthAndAlignmentAgreesWithTheDefinition) {
  std::string bytes;
  uint32_t state = 1;
  for (int i = 0; i < 6000; ++i) {
    state = state * 1664525u + 1013904223u;
    bytes.push_back(static_cast<char>(state >> 24));
  }
  for (const size_t start : {0, 1, 3, 7}) {
    for (const size_t size : {1, 7, 8, 9, 63, 64, 65, 255, 1023, 1024, 1025, 3072, 5000}) {
      const std::string part = bytes.substr(start, size);
      EXPECT_EQ(Crc32c(bytes.data() + start, size), BitwiseCrc32c(part)) << start << " " << size;
    }
  }
}

TEST(Crc32cTest, ExtendingEqualsOnePass) {
  const std::string bytes = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t head = Crc32c(bytes.data(), cut);
    EXPECT_EQ(ExtendCrc32c(head, bytes.data() + cut, bytes.size() - cut), Crc32c(bytes)) << cut;
  }
}

}  // namespace
}  // namespace capstan::training

// The messages of the model, each in 64 bits. Equal messages are the same message.
#ifndef CAPSTAN_TESTS_MODEL_MESSAGES_H_
#define CAPSTAN_TESTS_MODEL_MESSAGES_H_

#include <cstdint>
#include <string>

namespace capstan::model {

enum class Type : uint8_t {
  kNone,
  kFrame,         // lineage, step, block, source * 2 + cut, weights of both parts
  kSeal,          // likewise
  kWeights,       // lineage, version, slot, last version, weights
  kPart,          // lineage, step, slot, not finite
  kDecision,      // lineage, step, rate, flags
  kStartLineage,  // lineage, base, placement, order, incarnations of both slots
  kView,          // generation, lineage, owners of lanes 0 and 1, of lanes 2 and 3
  kFiles,         // lineage, version, slot, rate + 16 * order step, weights
  kFilesTaken,    // lineage, version
  kOrder,         // lineage
  kOrderApplied,  // lineage, step
  kEvaluation,    // lineage, version, mask of blocks
  kSum,           // lineage, version, slot, last version + 16 * rate, sum
};

// Flags of a decision.
inline constexpr int kApply = 1, kStop = 2, kCarriesOrder = 4, kCheckpoint = 8;

struct Message {
  Type type = Type::kNone;
  int a = 0, b = 0, c = 0, d = 0;  // 8 bits each
  int e = 0, f = 0;                // 14 bits each
};

constexpr uint64_t Pack(Type type, int a, int b = 0, int c = 0, int d = 0, int e = 0, int f = 0) {
  const auto bits = [](int value, int shift) { return static_cast<uint64_t>(value) << shift; };
  return bits(static_cast<int>(type), 60) | bits(a, 52) | bits(b, 44) | bits(c, 36) | bits(d, 28) |
         bits(e, 14) | bits(f, 0);
}

constexpr Message Unpack(uint64_t bits) {
  const auto field = [bits](int shift, uint64_t mask) {
    return static_cast<int>((bits >> shift) & mask);
  };
  return {static_cast<Type>(field(60, 15)),
          field(52, 255),
          field(44, 255),
          field(36, 255),
          field(28, 255),
          field(14, 16383),
          field(0, 16383)};
}

std::string ToString(const Message& message);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_MESSAGES_H_

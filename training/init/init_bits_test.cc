// The initial weights of every built-in model, bit for bit. A job must begin with the same weights
// whatever library, compiler or processor draws them. The hashes are those of g++ 12 with the
// functions of glibc 2.36, which the first versions used. portable_math.h must give the same
// floats.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "training/chunks/flat_layout.h"
#include "training/codec/sha256.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/init/init.h"
#include "training/random/philox.h"

namespace capstan::training {
namespace {

constexpr uint64_t kSeed = 42;
constexpr int64_t kElements =
    1000;  // of each tensor at most, so that the large nets do not take seconds
constexpr size_t kDigits = 16;  // of each hash

constexpr InitOptions kInitializers[] = {{Initializer::kXavier},
                                         {Initializer::kHe},
                                         {Initializer::kNormal, 0.01},
                                         {Initializer::kUniform, 0.07}};
constexpr const char* kInitializerNames[] = {"xavier", "he", "normal", "uniform"};

struct ModelBits {
  const char* model;
  Shape input;
  std::array<const char*, 4> hashes;  // in the order of kInitializers
};
const std::vector<ModelBits>& Kept() {
  static const auto& kept = *new std::vector<ModelBits>{
      {"alexnet",
       {3, 32, 32},
       {"2e9601534aa917a2", "c3b84ef3c11c5ff9", "4d760a6a09d2002c", "88f26c84c957f4be"}},
      {"gpt_nano",
       {1, 1, 64},
       {"525ffe1504b4cd84", "473d44d83cdc3c2a", "2a520e37bccde2cf", "01d8fbff2485c307"}},
      {"lenet",
       {1, 28, 28},
       {"de618457a50514f0", "688ce5ae890b01fb", "28ea3d4bacea8b85", "1a19404dfc8a1416"}},
      {"lenet_d2l",
       {1, 28, 28},
       {"93309e8f4355a662", "8c675fad23e17569", "e69227228d65ff06", "c462a9def1d1af28"}},
      {"mlp",
       {1, 28, 28},
       {"3b1bbfd4f1d93bee", "15e3754f02ff85ea", "bca494b9b3101b4a", "bb54d33b9fbd3f22"}},
      {"mobilenet_v1",
       {3, 32, 32},
       {"94df763504d57e88", "58ac79d9915a7ffd", "bb84ac11d8670cb2", "5256147eeee67db5"}},
      {"resnet18_v1",
       {3, 32, 32},
       {"d54ef5bb407b3429", "5b6329343da5d2b5", "c9ff7c99567b3466", "5e78229689184996"}},
      {"resnet18_v2",
       {3, 32, 32},
       {"848a90740daaf21d", "068795bf3bfc7c45", "9ec02db223196dfe", "dadbdb8cc43ce25c"}},
      {"resnet34_v1",
       {3, 32, 32},
       {"978dc90799043f31", "5b903834da8bad25", "ef2b8ccbd9f8f508", "850fde708edf5562"}},
      {"resnet50_v1",
       {3, 32, 32},
       {"3ce04f0f8edf040e", "c019a3f76a471c71", "ebbe237569da5876", "1e81140a53194d2f"}},
      {"vgg16",
       {3, 32, 32},
       {"9c4cdc92a20ec85c", "be51789c5e829e6e", "0c3312046b29be38", "a7f3296f2e14a8a3"}},
  };
  return kept;
}

std::string HashOf(const FlatLayout& layout, const InitOptions& options) {
  Sha256 hash;
  std::vector<float> values;
  for (const TensorSlot* slot : layout.forward_order()) {
    values.resize(std::min(slot->size, kElements));
    InitRange(layout, options, kSeed, slot->offset, absl::MakeSpan(values));
    hash.Update(values.data(), values.size() * sizeof(float));
  }
  return hash.FinishHex().substr(0, kDigits);
}

TEST(InitBitsTest, InitialWeightsNeverChange) {
  std::vector<absl::string_view> names;
  for (const ModelBits& kept : Kept()) {
    names.push_back(kept.model);
    const absl::StatusOr<Graph> graph = MakeModel(kept.model, 10, kept.input);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const absl::StatusOr<FlatLayout> layout = FlatLayout::Create(TensorSpecs(*graph));
    ASSERT_TRUE(layout.ok()) << layout.status();
    for (size_t i = 0; i < kept.hashes.size(); ++i) {
      EXPECT_EQ(HashOf(*layout, kInitializers[i]), kept.hashes[i])
          << kept.model << ", " << kInitializerNames[i];
    }
  }
  EXPECT_EQ(names, ModelNames()) << "each built-in model has its line";
}

// As the weights use them, rounded to float once.
TEST(InitBitsTest, NormalsNeverChange) {
  Sha256 hash;
  const Philox philox(kSeed, Purpose::kInit);
  for (uint32_t i = 0; i < 200000; ++i) {
    const auto [a, b] = philox.Normals({i, 0, 7, 0});
    const std::array<float, 2> pair = {static_cast<float>(a), static_cast<float>(b)};
    hash.Update(pair.data(), sizeof(pair));
  }
  EXPECT_EQ(hash.FinishHex().substr(0, kDigits), "f621b1cdc676ec9e");
}

}  // namespace
}  // namespace capstan::training

#include "training/graph/models_gpt.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/linear/linear.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax/softmax.h"
#include "training/ops/transpose/transpose.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training {
namespace {

// Added to the weights of later positions before the softmax, which then are exactly 0.
constexpr double kHidden = -1e9;
constexpr int64_t kMlpFactor = 4;

class GptBuilder {
 public:
  explicit GptBuilder(const GptOptions& options) : options_(options) {
    CAPSTAN_CHECK(options.heads >= 1 && options.width % options.heads == 0);
  }

  std::vector<GraphNode> Build() {
    const int64_t length = options_.positions, width = options_.width;
    const ValueId tokens = Append("tokens", Flatten(), {0});
    const ValueId table =
        Append("transformer.wte", ParameterNode{{options_.vocabulary, width}, "initializer"}, {});
    const ValueId places =
        Append("transformer.wpe", ParameterNode{{length, width}, "initializer"}, {});
    const ValueId rows = Append("transformer.embedding", Gather(), {table, tokens});
    ValueId x = Append("transformer.positions", Add(), {rows, places});
    x = Drop("transformer.drop", x);
    const auto head_size = static_cast<double>(width / options_.heads);
    scale_ = Append("attention.scale", ConstantOfShape{{1}, 1 / std::sqrt(head_size)}, {});
    const ValueId hidden =
        Append("attention.hidden", ConstantOfShape{{length, length}, kHidden}, {});
    mask_ = Append("attention.mask", Trilu{/*upper=*/true, /*k=*/1}, {hidden});
    for (int64_t layer = 0; layer < options_.layers; ++layer) {
      const std::string block = absl::StrCat("transformer.h.", layer, ".");
      const ValueId seen = Attention(block + "attn.", Norm(block + "ln_1", x));
      x = Append(block + "attn_add", Add(), {x, seen});
      const ValueId thought = Mlp(block + "mlp.", Norm(block + "ln_2", x));
      x = Append(block + "mlp_add", Add(), {x, thought});
    }
    x = Norm("transformer.ln_f", x);
    x = Append("lm_head", Linear{options_.vocabulary, /*bias=*/false}, {x});
    Append("loss", SequenceCrossEntropyLoss(), {x, tokens});
    return std::move(nodes_);
  }

 private:
  ValueId Append(std::string name, Operator op, std::vector<ValueId> inputs) {
    nodes_.push_back({std::move(name), std::move(op), std::move(inputs)});
    return static_cast<ValueId>(nodes_.size());
  }
  ValueId Norm(std::string name, ValueId x) {
    return Append(std::move(name), LayerNormalization(), {x});
  }
  ValueId Drop(std::string name, ValueId x) {
    if (options_.dropout <= 0) return x;
    return Append(std::move(name), Dropout{options_.dropout}, {x});
  }

  // [positions, width] to the same.
  ValueId Attention(const std::string& part, ValueId x) {
    const int64_t heads = options_.heads, size = options_.width / heads;
    constexpr int64_t kParts = 3;  // queries, keys, values
    x = Append(part + "c_attn", Linear{kParts * options_.width}, {x});
    x = Append(part + "split", Reshape{{options_.positions, kParts, heads, size}}, {x});
    x = Append(part + "heads", Transpose{{2, 3, 1, 4}}, {x});  // [parts, heads, positions, size]
    const auto of = [&](const char* name, int64_t which) {
      return Append(part + name, SliceNode{{which}, {which + 1}, {1}, {1}}, {x});
    };
    const ValueId queries = of("q", 0), keys = of("k", 1), values = of("v", 2);
    const ValueId turned = Append(part + "k_turned", Transpose{{1, 2, 4, 3}}, {keys});
    ValueId y = Append(part + "products", MatMul(), {queries, turned});
    y = Append(part + "scaled", Mul(), {y, scale_});
    y = Append(part + "masked", Add(), {y, mask_});
    y = Append(part + "softmax", Softmax(), {y});
    y = Drop(part + "attn_dropout", y);
    y = Append(part + "seen", MatMul(), {y, values});
    y = Append(part + "together", Transpose{{3, 1, 2, 4}}, {y});  // [positions, 1, heads, size]
    y = Append(part + "joined", Reshape{{options_.positions, options_.width}}, {y});
    y = Append(part + "c_proj", Linear{options_.width}, {y});
    return Drop(part + "resid_dropout", y);
  }

  ValueId Mlp(const std::string& part, ValueId x) {
    x = Append(part + "c_fc", Linear{kMlpFactor * options_.width}, {x});
    x = Append(part + "gelu", Gelu{"tanh"}, {x});
    x = Append(part + "c_proj", Linear{options_.width}, {x});
    return Drop(part + "dropout", x);
  }

  const GptOptions& options_;
  std::vector<GraphNode> nodes_;
  ValueId scale_ = 0, mask_ = 0;
};

}  // namespace

std::vector<GraphNode> GptNodes(const GptOptions& options) { return GptBuilder(options).Build(); }

}  // namespace capstan::training

// Language models on characters as nodes of a graph. See models.h.
#ifndef CAPSTAN_TRAINING_GRAPH_MODELS_GPT_H_
#define CAPSTAN_TRAINING_GRAPH_MODELS_GPT_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::training {

struct GptOptions {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;       // a multiple of `heads`
  int64_t vocabulary = 0;  // classes
  int64_t positions = 0;   // tokens of a sample, i.e. numbers of the graph's input
  double dropout = 0;      // 0 means no Dropout nodes
};

// The network reads tokens, whole numbers below `vocabulary`, and predicts at each position the
// token that follows. It begins with the sum of a row of `transformer.wte` for the token and a row
// of `transformer.wpe` for the place. Then come `layers` blocks,
//   x = x + attn(ln_1(x)); x = x + mlp(ln_2(x)),
// a normalisation and a dense layer without bias, whose weights are its own. In attention a position
// sees itself and those before it. The MLP is four times as wide, with the tanh form of Gelu.
// Dropout is where minGPT has it: behind the embedding, on the attention's weights and at the end of
// each branch.
//
// Names and shapes of parameters are those of Karpathy's minGPT (github.com/karpathy/minGPT,
// mingpt/model.py). The blocks are those of Radford et al. 2019, "Language Models are Unsupervised
// Multitask Learners".
std::vector<GraphNode> GptNodes(const GptOptions& options);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_GPT_H_

#include "tests/model/checker.h"

#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/model/messages.h"

namespace capstan::model {
namespace {

// Checks I4 on the messages in flight and the workers' views.
std::string CheckViews(const State& state) {
  std::map<int, uint64_t> views;
  for (const uint64_t bits : state.network) {
    const Message m = Unpack(bits);
    if (m.type != Type::kView) continue;
    const auto [known, fresh] = views.emplace(m.a, bits);
    if (!fresh && known->second != bits)
      return absl::StrCat("I4: generation ", m.a, " names two assignments");
  }
  return "";
}

}  // namespace

Verdict Search(const World& world, size_t max_states) {
  const SearchOptions options = {.max_states = max_states,
                                 .dead_end = "I6: a dead end that is not done"};
  return Searcher<Protocol>(Protocol(world), CheckViews, options).Run();
}

}  // namespace capstan::model

#include "tests/model/checker.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "tests/model/messages.h"

namespace capstan::model {
namespace {

uint64_t Mix(const void* data, size_t words, uint64_t hash) {
  const char* bytes = static_cast<const char*>(data);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

uint64_t HashOf(const State& state) {
  static_assert(sizeof(Core) % 8 == 0);
  uint64_t hash = Mix(&state.core, sizeof(Core) / 8, 0x1234567);
  hash = Mix(state.network.data(), state.network.size(), hash) * 0x94D049BB133111EBu;
  hash ^= hash >> 31;
  return hash == 0 ? 1 : hash;
}

// Hashes of the states seen so far.
class Seen {
 public:
  Seen() : slots_(1 << 16) {}

  size_t size() const { return size_; }
  bool Add(uint64_t hash) {
    if (size_ * 10 > slots_.size() * 6) Grow();
    const size_t mask = slots_.size() - 1;
    size_t at = (hash * 0x9E3779B97F4A7C15u) & mask;
    for (; slots_[at] != 0; at = (at + 1) & mask) {
      if (slots_[at] == hash) return false;
    }
    slots_[at] = hash;
    ++size_;
    return true;
  }

 private:
  void Grow() {
    std::vector<uint64_t> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const uint64_t hash : old) {
      if (hash != 0) Add(hash);
    }
  }

  std::vector<uint64_t> slots_;
  size_t size_ = 0;
};

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

class Searcher {
 public:
  Searcher(const World& world, size_t max_states) : protocol_(world), max_states_(max_states) {}

  Verdict Run() {
    State first = protocol_.Initial();
    seen_.Add(HashOf(first));
    parents_.push_back({0, 0});
    queue_.emplace_back(std::move(first), 0);
    size_t expanded = 0, level_ends = 1;
    verdict_.complete = true;
    while (!queue_.empty() && verdict_.violation.empty()) {
      if (seen_.size() > max_states_) {
        verdict_.complete = false;
        break;
      }
      const std::pair<State, uint32_t> entry = std::move(queue_.front());
      queue_.pop_front();
      Expand(entry.first, entry.second);
      if (++expanded == level_ends) {
        ++verdict_.depth;
        level_ends = expanded + queue_.size();
      }
    }
    verdict_.states = seen_.size();
    return std::move(verdict_);
  }

 private:
  struct Parent {
    uint32_t state = 0;
    uint32_t step = 0;  // number among its successors
  };

  void Expand(const State& state, uint32_t id) {
    const uint64_t hash = HashOf(state);
    const bool finished = protocol_.Finished(state);
    verdict_.done_states += finished ? 1 : 0;
    bool goes_on = false;
    uint32_t step = 0;
    protocol_.Successors(state, false, [&](Protocol::Step&& next) {
      const uint32_t number = step++;
      ++verdict_.transitions;
      if (!verdict_.violation.empty()) return;
      const uint64_t to = HashOf(next.next);
      if (to != hash && !next.fault) goes_on = true;
      std::string broken =
          next.violation.empty() ? CheckViews(next.next) : std::move(next.violation);
      if (!broken.empty()) {
        verdict_.violation = std::move(broken);
        Trace(id);
        Append(state, number);
        return;
      }
      if (!seen_.Add(to)) return;
      parents_.push_back({id, number});
      queue_.emplace_back(std::move(next.next), static_cast<uint32_t>(parents_.size() - 1));
    });
    if (verdict_.violation.empty() && !goes_on && !finished) {
      verdict_.violation = "I6: a dead end that is not done";
      Trace(id);
    }
  }

  // Repeats the way to a state, with words.
  void Trace(uint32_t id) {
    std::vector<uint32_t> steps;
    for (uint32_t at = id; at != 0; at = parents_[at].state) steps.push_back(parents_[at].step);
    std::reverse(steps.begin(), steps.end());
    State state = protocol_.Initial();
    for (const uint32_t step : steps) state = Append(state, step);
  }

  State Append(const State& state, uint32_t wanted) {
    State result;
    uint32_t step = 0;
    protocol_.Successors(state, true, [&](Protocol::Step&& next) {
      if (step++ != wanted) return;
      verdict_.trace.push_back(std::move(next.what));
      result = std::move(next.next);
    });
    return result;
  }

  Protocol protocol_;
  const size_t max_states_;
  Seen seen_;
  std::vector<Parent> parents_;
  std::deque<std::pair<State, uint32_t>> queue_;
  Verdict verdict_;
};

}  // namespace

Verdict Search(const World& world, size_t max_states) { return Searcher(world, max_states).Run(); }

}  // namespace capstan::model

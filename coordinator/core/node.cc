#include "coordinator/core/node.h"

#include <iterator>
#include <utility>

namespace capstan::coordinator::core {

void Node::Start(int64_t incarnation, int devices) {
  *this = Node();
  incarnation_ = incarnation;
  slots_.assign(static_cast<size_t>(devices), std::string());
}

void Node::Connect(SessionId session) {
  unheard_ = unheard_ || lost_;
  session_ = last_session_ = session;
  lost_ = left_ = false;
  strays_.clear();
}

void Node::Hear(absl::Duration now, absl::Time wall) {
  last_heard_ = now;
  last_heard_wall_ = wall;
}

std::set<std::string> Node::Lose(bool left) {
  lost_ = true;
  left_ = left;
  return std::exchange(jobs_, {});
}

void Node::ComeBack() {
  lost_ = left_ = false;
  unheard_ = true;
}

void Node::HoldFreeSlots(const std::string& job) {
  for (std::string& slot : slots_) {
    if (slot.empty()) slot = job;
  }
}

bool Node::FreeSlots(const std::string& job, const std::set<int>& except) {
  bool freed = false;
  for (size_t device = 0; device < slots_.size(); ++device) {
    if (slots_[device] != job || except.count(static_cast<int>(device)) > 0) continue;
    slots_[device].clear();
    freed = true;
  }
  return freed;
}

bool Node::KeepStrays(const std::set<std::string>& jobs) {
  bool forgot = false;
  for (auto it = strays_.begin(); it != strays_.end();) {
    const bool keep = jobs.count(it->first) > 0;
    forgot = forgot || !keep;
    it = keep ? std::next(it) : strays_.erase(it);
  }
  return forgot;
}

}  // namespace capstan::coordinator::core

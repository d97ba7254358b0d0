// Passes on the successors of one state.
#ifndef CAPSTAN_TESTS_MODEL_EMITTER_H_
#define CAPSTAN_TESTS_MODEL_EMITTER_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/messages.h"
#include "tests/model/protocol.h"

namespace capstan::model {

class Protocol::Emitter {
 public:
  Emitter(Protocol* protocol, const State& from, bool describe, const Visit& visit)
      : protocol_(protocol), from_(from), describe_(describe), visit_(visit) {}

  const State& from() const { return from_; }
  const Core& core() const { return from_.core; }
  // The same for another state. `from` must outlive it.
  Emitter From(const State& from) const { return Emitter(protocol_, from, describe_, visit_); }

  // `message`, `at` and `detail` say more about the transition; 0 and -1 mean nothing.
  void Go(State next, const char* what, uint64_t message = 0, int at = -1, int detail = -1) {
    Out(std::move(next), false, what, message, at, detail);
  }
  void Fault(State next, const char* what, int at = -1, int detail = -1) {
    Out(std::move(next), true, what, 0, at, detail);
  }

 private:
  void Out(State next, bool fault, const char* what, uint64_t message, int at, int detail) {
    protocol_->Settle(&next);
    Step step;
    step.next = std::move(next);
    step.fault = fault;
    step.violation.swap(protocol_->violation_);
    if (describe_) {
      step.what = absl::StrCat(fault ? "* " : "  ", what,
                               message == 0 ? "" : ": " + ToString(Unpack(message)));
      if (at >= 0) absl::StrAppend(&step.what, ", at ", at);
      if (detail >= 0) absl::StrAppend(&step.what, ", ", detail);
    }
    visit_(std::move(step));
  }

  Protocol* const protocol_;
  const State& from_;
  const bool describe_;
  const Visit& visit_;
};

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_EMITTER_H_

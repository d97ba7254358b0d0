// Passes on the successors of one state of the asynchronous model.
#ifndef CAPSTAN_TESTS_MODEL_ASYNC_EMITTER_H_
#define CAPSTAN_TESTS_MODEL_ASYNC_EMITTER_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/async_protocol.h"

namespace capstan::model {

class AsyncProtocol::Emitter {
 public:
  Emitter(AsyncProtocol* protocol, const AsyncState& from, bool describe, const Visit& visit)
      : protocol_(protocol), from_(from), describe_(describe), visit_(visit) {}

  const AsyncState& from() const { return from_; }
  const AsyncCore& core() const { return from_.core; }

  // `message`, `at` and `detail` say more about the transition; 0 and -1 mean nothing.
  void Go(AsyncState next, const char* what, uint64_t message = 0, int at = -1, int detail = -1) {
    Out(std::move(next), false, what, message, at, detail);
  }
  void Fault(AsyncState next, const char* what, uint64_t message = 0, int at = -1,
             int detail = -1) {
    Out(std::move(next), true, what, message, at, detail);
  }

 private:
  void Out(AsyncState next, bool fault, const char* what, uint64_t message, int at, int detail) {
    protocol_->AnswerAtOnce(&next.core);
    protocol_->Settle(&next);
    Step step;
    step.next = std::move(next);
    step.fault = fault;
    step.violation.swap(protocol_->violation_);
    if (describe_) {
      step.what = absl::StrCat(fault ? "* " : "  ", what);
      if (message != 0) absl::StrAppend(&step.what, ": ", ToString(UnpackAsync(message)));
      if (at >= 0) absl::StrAppend(&step.what, ", at ", at);
      if (detail >= 0) absl::StrAppend(&step.what, ", ", detail);
    }
    visit_(std::move(step));
  }

  AsyncProtocol* const protocol_;
  const AsyncState& from_;
  const bool describe_;
  const Visit& visit_;
};

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_ASYNC_EMITTER_H_

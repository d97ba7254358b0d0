// A server stream that the person can leave with Ctrl-C.
#ifndef CAPSTAN_CLIENT_COMMANDS_STREAM_CALL_H_
#define CAPSTAN_CLIENT_COMMANDS_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/channel/channel.h"
#include "services/server/signals.h"
#include "services/status/status.h"

namespace capstan::client {

struct StreamEnd {
  absl::Status status;
  bool detached = false;  // by a signal
};

// Reads the stream to its end. `timeout` bounds the whole stream. With InfiniteDuration there is no
// bound, and SIGINT and SIGTERM end it.
template <typename Response>
StreamEnd ReadStream(
    absl::Duration timeout,
    const std::function<std::unique_ptr<grpc::ClientReader<Response>>(grpc::ClientContext*)>& open,
    const std::function<void(const Response&)>& each) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const bool follow = timeout == absl::InfiniteDuration();
  if (!follow) services::SetTimeout(context, timeout);
  std::atomic<bool> done = false;
  std::atomic<bool> detached = false;
  std::thread guard;
  if (follow) {
    services::ShutdownSignal& signal = services::ShutdownSignal::Install();
    guard = std::thread([&] {
      while (!done) {
        if (!signal.WaitFor(absl::Milliseconds(100))) continue;
        detached = true;
        context.TryCancel();
        return;
      }
    });
  }
  const auto reader = open(&context);
  Response response;
  while (reader->Read(&response)) each(response);
  const absl::Status status = services::FromGrpcStatus(reader->Finish());
  done = true;
  if (guard.joinable()) guard.join();
  return {status, detached};
}

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_STREAM_CALL_H_

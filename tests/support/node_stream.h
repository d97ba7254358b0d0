// The stream of a node that a test plays.
#ifndef CAPSTAN_TESTS_SUPPORT_NODE_STREAM_H_
#define CAPSTAN_TESTS_SUPPORT_NODE_STREAM_H_

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"

namespace capstan::tests {

// Registers at once and ends with its scope. One thread may read and one may write.
class NodeStream {
 public:
  NodeStream(const std::shared_ptr<grpc::Channel>& channel, node::v1::Register reg)
      : stub_(node::v1::NodeService::NewStub(channel)) {
    services::SetTimeout(context_, absl::Minutes(2));
    stream_ = stub_->Connect(&context_);
    node::v1::ConnectRequest request;
    *request.mutable_register_() = std::move(reg);
    stream_->Write(request);
  }
  ~NodeStream() {
    Cancel();
    if (!finished_) (void)End();
  }
  NodeStream(const NodeStream&) = delete;
  NodeStream& operator=(const NodeStream&) = delete;

  bool Read(node::v1::ConnectResponse* response) { return stream_->Read(response); }
  void Say(const node::v1::ConnectRequest& request) { stream_->Write(request); }
  void Cancel() { context_.TryCancel(); }
  // Waits for the stream's end and returns its status.
  grpc::Status End() {
    node::v1::ConnectResponse response;
    while (Read(&response)) continue;
    finished_ = true;
    return stream_->Finish();
  }

 private:
  const std::unique_ptr<node::v1::NodeService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<node::v1::ConnectRequest, node::v1::ConnectResponse>>
      stream_;
  bool finished_ = false;
};

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_NODE_STREAM_H_

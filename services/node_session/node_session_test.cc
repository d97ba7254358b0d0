#include "services/node_session/node_session.h"

#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

using node::v1::ConnectRequest;
using node::v1::ConnectResponse;

constexpr absl::Duration kLimit = absl::Seconds(20);  // far longer than any wait below

// A coordinator that answers Register, records messages, and ends or fails a stream on demand.
class FakeCoordinator : public node::v1::NodeService::Service {
 public:
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<ConnectResponse, ConnectRequest>* stream) override {
    ConnectRequest request;
    while (stream->Read(&request)) {
      ConnectResponse reply;
      bool answer = false;
      {
        MutexLock lock(mu_);
        heard_.push_back(request);
        changed_.NotifyAll();
        if (request.has_register_()) {
          if (refuse_ > 0) {
            --refuse_;
            return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "another live node");
          }
          reply.mutable_registered()->set_incarnation(41);
          reply.mutable_registered()->set_heartbeat_ms(heartbeat_ms_);
          answer = true;
        } else if (request.has_logs()) {
          // A log line asks this fake to send a message or to hang up.
          if (request.logs().job_id() == "hang-up") return grpc::Status::OK;
          reply.mutable_end_job()->set_job_id(request.logs().job_id());
          answer = true;
        }
      }
      if (answer) stream->Write(reply);
    }
    MutexLock lock(mu_);
    ++goodbyes_;
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  void set_heartbeat_ms(int ms) {
    MutexLock lock(mu_);
    heartbeat_ms_ = ms;
  }
  void Refuse(int times) {
    MutexLock lock(mu_);
    refuse_ = times;
  }
  // The messages received so far, once `is` holds for `count` of them.
  template <typename Is>
  std::vector<ConnectRequest> WaitFor(size_t count, Is is) {
    MutexLock lock(mu_);
    const absl::Time until = absl::Now() + kLimit;
    while (true) {
      std::vector<ConnectRequest> matching;
      for (const ConnectRequest& request : heard_) {
        if (is(request)) matching.push_back(request);
      }
      if (matching.size() >= count || absl::Now() > until) return matching;
      changed_.WaitWithTimeout(mu_, absl::Milliseconds(100));
    }
  }
  int goodbyes() {
    MutexLock lock(mu_);
    return goodbyes_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<ConnectRequest> heard_ ABSL_GUARDED_BY(mu_);
  int heartbeat_ms_ ABSL_GUARDED_BY(mu_) = 3600 * 1000;
  int refuse_ ABSL_GUARDED_BY(mu_) = 0;
  int goodbyes_ ABSL_GUARDED_BY(mu_) = 0;
};

bool IsRegister(const ConnectRequest& m) { return m.has_register_(); }
bool IsHeartbeat(const ConnectRequest& m) { return m.has_heartbeat(); }

class NodeSessionTest : public testing::Test {
 protected:
  NodeSessionTest() {
    char folder[] = "/tmp/capstan-node-XXXXXX";
    folder_ = mkdtemp(folder);
    address_ = absl::StrCat("unix:", folder_, "/c.sock");
  }
  ~NodeSessionTest() override {
    session_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    unlink((folder_ + "/c.sock").c_str());
    rmdir(folder_.c_str());
  }
  void Listen() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Dial() {
    NodeSessionOptions options;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    options.channel =
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
    options.registration.set_name("w0");
    options.initial_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(50);
    NodeSession::Callbacks callbacks;
    callbacks.make_heartbeat = [this] {
      node::v1::Heartbeat heartbeat;
      MutexLock lock(mu_);
      heartbeat.add_tasks()->set_step(++step_);
      return heartbeat;
    };
    callbacks.on_message = [this](const ConnectResponse& message) {
      MutexLock lock(mu_);
      messages_.push_back(message);
      changed_.NotifyAll();
    };
    callbacks.on_registered = [this](const node::v1::Registered& registered) {
      MutexLock lock(mu_);
      incarnations_.push_back(registered.incarnation());
    };
    callbacks.on_lost = [this](const absl::Status& status) {
      MutexLock lock(mu_);
      lost_.push_back(status);
      changed_.NotifyAll();
    };
    session_ = std::make_unique<NodeSession>(options, callbacks);
    session_->Start();
  }
  void SendLog(const std::string& job_id) {
    ConnectRequest request;
    request.mutable_logs()->set_job_id(job_id);
    ASSERT_TRUE(session_->Send(request).ok());
  }

  std::string folder_, address_;
  FakeCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  CondVar changed_;
  int step_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<ConnectResponse> messages_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> lost_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> incarnations_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<NodeSession> session_;
};

TEST_F(NodeSessionTest, RegistersThenReportsAtOnceAndWhenNotified) {
  Listen();
  Dial();
  ASSERT_EQ(coordinator_.WaitFor(1, IsHeartbeat).size(), 1u);  // the interval is an hour
  const auto registers = coordinator_.WaitFor(1, IsRegister);
  EXPECT_EQ(registers[0].register_().name(), "w0");
  EXPECT_EQ(registers[0].register_().last_incarnation(), 0);
  {
    MutexLock lock(mu_);
    EXPECT_EQ(incarnations_, std::vector<int64_t>{41});  // before the heartbeat left
  }
  session_->Notify();
  const auto heartbeats = coordinator_.WaitFor(2, IsHeartbeat);
  ASSERT_EQ(heartbeats.size(), 2u);
  EXPECT_EQ(heartbeats[1].heartbeat().tasks(0).step(), 2);
}

TEST_F(NodeSessionTest, HeartbeatsComeAtTheIntervalThatTheCoordinatorSets) {
  coordinator_.set_heartbeat_ms(5);
  Listen();
  Dial();
  EXPECT_GE(coordinator_.WaitFor(5, IsHeartbeat).size(), 5u);
}

TEST_F(NodeSessionTest, MessagesArriveInOrder) {
  Listen();
  Dial();
  for (int i = 0; i < 50; ++i) SendLog(absl::StrCat("j", i));
  MutexLock lock(mu_);
  const absl::Time until = absl::Now() + kLimit;
  while (messages_.size() < 50 && absl::Now() < until) {
    changed_.WaitWithTimeout(mu_, absl::Milliseconds(100));
  }
  ASSERT_EQ(messages_.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(messages_[i].end_job().job_id(), absl::StrCat("j", i));
}

TEST_F(NodeSessionTest, ComesBackWithItsIncarnation) {
  Listen();
  Dial();
  SendLog("hang-up");
  const auto registers = coordinator_.WaitFor(2, IsRegister);
  ASSERT_EQ(registers.size(), 2u);
  EXPECT_EQ(registers[1].register_().last_incarnation(), 41);
  EXPECT_EQ(registers[0].register_().resume_key().size(), 16u);
  EXPECT_EQ(registers[1].register_().resume_key(), registers[0].register_().resume_key());
  MutexLock lock(mu_);
  ASSERT_FALSE(lost_.empty());
  EXPECT_EQ(lost_[0].code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeSessionTest, ARefusalIsToldAndTriedAgain) {
  coordinator_.Refuse(2);
  Listen();
  Dial();
  ASSERT_EQ(coordinator_.WaitFor(1, IsHeartbeat).size(), 1u);
  MutexLock lock(mu_);
  ASSERT_EQ(lost_.size(), 2u);
  EXPECT_EQ(lost_[0].code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(NodeSessionTest, WaitsForACoordinatorThatComesLater) {
  Dial();
  SendLog("kept");
  Listen();
  ASSERT_EQ(coordinator_.WaitFor(1, [](const ConnectRequest& m) { return m.has_logs(); }).size(),
            1u);
}

TEST_F(NodeSessionTest, StopSaysGoodbye) {
  Listen();
  Dial();
  ASSERT_EQ(coordinator_.WaitFor(1, IsHeartbeat).size(), 1u);
  session_->Stop();
  session_->Stop();
  EXPECT_EQ(coordinator_.goodbyes(), 1);
}

TEST_F(NodeSessionTest, StopsWithoutACoordinator) {
  Dial();
  const absl::Time start = absl::Now();
  session_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(NodeSessionTest, TheQueueIsBounded) {
  Dial();
  ConnectRequest request;
  request.mutable_logs()->set_job_id("j");
  for (int i = 0; i < 4096; ++i) ASSERT_TRUE(session_->Send(request).ok());
  EXPECT_EQ(session_->Send(request).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace capstan::services

// A node's look around, against shards that are real servers: one that answers, one that is older,
// one that is not there.
#include "param_store/diagnoser/diagnoser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "services/files/files.h"
#include "services/server/server.h"

namespace capstan::param_store {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(30);

class Shard final
    : public v1::ParamStoreService::WithCallbackMethod_Measure<v1::ParamStoreService::Service> {
 public:
  grpc::ServerUnaryReactor* Measure(grpc::CallbackServerContext* context,
                                    const v1::MeasureRequest* request,
                                    v1::MeasureResponse* response) override {
    response->set_received_bytes(static_cast<int64_t>(request->payload().size()));
    {
      MutexLock lock(mu_);
      received_bytes_ += response->received_bytes();
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  int64_t received_bytes() {
    MutexLock lock(mu_);
    return received_bytes_;
  }

 private:
  Mutex mu_;
  int64_t received_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// Answers the first call, and none after it.
class TiringShard final
    : public v1::ParamStoreService::WithCallbackMethod_Measure<v1::ParamStoreService::Service> {
 public:
  grpc::ServerUnaryReactor* Measure(grpc::CallbackServerContext* context, const v1::MeasureRequest*,
                                    v1::MeasureResponse*) override {
    if (calls_.fetch_add(1) > 0) return new Never();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  int calls() const { return calls_.load(); }

 private:
  class Never final : public grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };

  std::atomic<int> calls_{0};
};

// Of a version that cannot be measured.
class OldShard final : public v1::ParamStoreService::Service {};

class DiagnoserTest : public ::testing::Test {
 protected:
  DiagnoserTest() : folder_(*services::MakePrivateDir("diagnoser")) {}
  ~DiagnoserTest() override { (void)services::RemoveTree("/tmp", folder_); }

  std::string Address(const std::string& name) const {
    return absl::StrCat("unix:", folder_, "/", name);
  }
  std::unique_ptr<services::Server> Serve(const std::string& name, grpc::Service& service) {
    services::ServerOptions options;
    options.listen = *services::ParseEndpoint(Address(name));
    options.max_receive_bytes = services::kExchangeMaxReceiveBytes;
    auto server =
        services::Server::Start(options, {{v1::ParamStoreService::service_full_name(), &service}});
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  DiagnoserOptions Options() {
    DiagnoserOptions options;
    options.folders = {services::FolderFor(folder_, job::v1::FOLDER_USE_CHECKPOINTS)};
    options.devices = [] {
      job::v1::DeviceReport report;
      report.set_name("cuda:0");
      return std::vector<job::v1::DeviceReport>{report};
    };
    options.answer = [this](const node::v1::ConnectRequest& answer) {
      MutexLock lock(mu_);
      answer_ = answer.diagnosis_result();
      changed_.NotifyAll();
    };
    return options;
  }
  std::optional<node::v1::DiagnosisResult> Answer(absl::Duration limit) {
    MutexLock lock(mu_);
    while (!answer_.has_value()) {
      if (changed_.WaitWithTimeout(mu_, limit)) break;
    }
    return answer_;
  }
  static node::v1::Diagnose Order() {
    node::v1::Diagnose order;
    order.set_diagnosis_id(7);
    order.set_timeout_ms(20000);
    order.set_bytes_per_peer(int64_t{1} << 20);
    return order;
  }
  void AddPeer(node::v1::Diagnose& order, const std::string& name) {
    node::v1::Peer& peer = *order.add_peers();
    peer.set_node(name);
    peer.set_address(Address(name));
  }

  const std::string folder_;
  Mutex mu_;
  CondVar changed_;
  std::optional<node::v1::DiagnosisResult> answer_ ABSL_GUARDED_BY(mu_);
};

TEST_F(DiagnoserTest, SaysWhomItReachesAndHowFast) {
  Shard good;
  OldShard old;
  const auto good_server = Serve("good", good);
  const auto old_server = Serve("old", old);
  node::v1::Diagnose order = Order();
  AddPeer(order, "nobody");
  AddPeer(order, "good");
  AddPeer(order, "old");
  *order.add_folders() = services::FolderFor(folder_ + "/none", job::v1::FOLDER_USE_DATA);
  Diagnoser diagnoser(Options());
  diagnoser.Start(order);
  const auto result = Answer(kLimit);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->diagnosis_id(), 7);
  EXPECT_LE(result->asked_at().seconds(), result->answered_at().seconds());
  ASSERT_EQ(result->peers_size(), 3);
  EXPECT_EQ(result->peers(0).node(), "nobody");
  EXPECT_EQ(result->peers(0).code(), 14);  // UNAVAILABLE
  EXPECT_THAT(result->peers(0).message(), ::testing::HasSubstr("No such file"));
  EXPECT_EQ(result->peers(1).code(), 0);
  EXPECT_GT(result->peers(1).round_trip_seconds(), 0);
  EXPECT_GT(result->peers(1).bytes_per_second(), 0);
  EXPECT_GE(good.received_bytes(), 64 << 10);
  EXPECT_LE(good.received_bytes(), 1 << 20);  // of the order
  EXPECT_EQ(result->peers(2).code(), 12);     // UNIMPLEMENTED
  EXPECT_FALSE(result->peers(2).has_bytes_per_second());
  ASSERT_EQ(result->folders_size(), 2);
  EXPECT_EQ(result->folders(0).error(), "No such file or directory");
  EXPECT_GT(result->folders(1).total_bytes(), 0);
  ASSERT_EQ(result->devices_size(), 1);
}

TEST_F(DiagnoserTest, AShardThatAnswersNoMoreTakesNoLongerThanTheOrder) {
  TiringShard shard;
  const auto server = Serve("tiring", shard);
  node::v1::Diagnose order = Order();
  order.set_timeout_ms(2000);
  AddPeer(order, "tiring");
  Diagnoser diagnoser(Options());
  diagnoser.Start(order);
  const auto result = Answer(kLimit);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(shard.calls(), 2);
  EXPECT_EQ(result->peers(0).code(), 0);  // it was reached
  EXPECT_FALSE(result->peers(0).has_round_trip_seconds());
}

TEST_F(DiagnoserTest, AWayThatMayNotBeTakenIsToldWithItsReason) {
  node::v1::Diagnose order = Order();
  node::v1::Peer& peer = *order.add_peers();
  peer.set_node("far");
  peer.set_address("10.0.0.1:7080");  // over TCP without a certificate
  Diagnoser diagnoser(Options());
  diagnoser.Start(order);
  const auto result = Answer(kLimit);
  ASSERT_TRUE(result.has_value());
  EXPECT_NE(result->peers(0).code(), 0);
  EXPECT_NE(result->peers(0).message(), "");
}

TEST_F(DiagnoserTest, StopBreaksOffAndNothingIsAnswered) {
  // Listens and never accepts: nobody speaks HTTP/2 there.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  absl::StrCat(folder_, "/mute").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  node::v1::Diagnose order = Order();
  AddPeer(order, "mute");
  {
    Diagnoser diagnoser(Options());
    diagnoser.Start(order);
    diagnoser.Stop();
    diagnoser.Start(order);
  }
  EXPECT_FALSE(Answer(absl::ZeroDuration()).has_value());
  // And in its time it is told that nothing came back.
  Diagnoser diagnoser(Options());
  diagnoser.Start(order);
  const auto result = Answer(kLimit);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->peers(0).code(), 4);  // DEADLINE_EXCEEDED
  close(fd);
}

}  // namespace
}  // namespace capstan::param_store

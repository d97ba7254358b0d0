#include "exchange/transport/stream_guard.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange {
namespace {

using services::Identity;
using services::Role;
using ::testing::HasSubstr;

// Worker 0 is node a-1 of certificate a, worker 1 node b; shard 1 is node s of an address.
class StreamGuardTest : public testing::Test {
 protected:
  StreamGuardTest() { guard_.Learn(View(1, 1), Certificates()); }

  static common::v1::View View(int64_t lineage, int64_t generation) {
    common::v1::View view;
    view.set_lineage(lineage);
    view.set_generation(generation);
    for (const char* node : {"a-1", "b"}) {
      common::v1::WorkerRef& worker = *view.add_workers();
      worker.set_rank(view.workers_size() - 1);
      worker.set_node(node);
    }
    for (const char* node : {"lead", "s"}) {
      common::v1::ShardRoute& shard = *view.add_shards();
      shard.set_index(view.shards_size() - 1);
      shard.set_node(node);
    }
    return view;
  }
  static StreamGuard::Certificates Certificates() {
    StreamGuard::Certificates out;
    for (const auto& [node, name] : {std::pair("a-1", "a"), std::pair("b", "b"),
                                     std::pair("lead", "lead"), std::pair("s", "10.0.0.1")}) {
      node::v1::NodeCertificate& entry = *out.Add();
      entry.set_node(node);
      entry.set_name(name);
    }
    return out;
  }
  absl::Status Open(const Caller& caller, v1::StreamKind kind, int32_t index,
                    int64_t lineage = 1) const {
    v1::Hello hello;
    hello.set_kind(kind);
    hello.set_index(index);
    hello.set_lineage(lineage);
    return guard_.Check(caller, hello);
  }
  bool May(const Caller& caller, v1::StreamKind kind, int32_t index, int64_t lineage = 1) const {
    const absl::Status status = Open(caller, kind, index, lineage);
    EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
    return status.ok();
  }

  StreamGuard guard_;
};

constexpr v1::StreamKind kData = v1::STREAM_KIND_DATA;
constexpr v1::StreamKind kControl = v1::STREAM_KIND_CONTROL;
constexpr v1::StreamKind kShard = v1::STREAM_KIND_SHARD;

TEST_F(StreamGuardTest, AWorkerIsNoShardAndAShardIsNoTask) {
  EXPECT_THAT(std::string(Open(Identity{Role::kWorker, "s"}, kShard, 1).message()),
              HasSubstr("role worker may not speak as a shard"));
  for (const v1::StreamKind kind : {kData, kControl}) {
    EXPECT_THAT(std::string(Open(Identity{Role::kParamStore, "b"}, kind, 1).message()),
                HasSubstr("role param_store may not speak as a task"));
  }
}

TEST_F(StreamGuardTest, AStreamIsOfTheNodeThatTheViewNames) {
  EXPECT_TRUE(May(Identity{Role::kWorker, "a"}, kData, 0));
  EXPECT_TRUE(May(Identity{Role::kWorker, "b"}, kControl, 1));
  EXPECT_FALSE(May(Identity{Role::kWorker, "b"}, kData, 0));
  EXPECT_FALSE(May(Identity{Role::kWorker, "b"}, kControl, 0));
  EXPECT_TRUE(May(Identity{Role::kParamStore, "10.0.0.1"}, kShard, 1));
  EXPECT_FALSE(May(Identity{Role::kParamStore, "lead"}, kShard, 1));
  EXPECT_EQ(Open(Identity{Role::kWorker, "b"}, kData, 0).message(),
            "worker 0 is node a-1 of certificate a, not of b");
  // Renewed under the node's own name.
  EXPECT_TRUE(May(Identity{Role::kWorker, "a-1"}, kData, 0));
  EXPECT_TRUE(May(Identity{Role::kParamStore, "s"}, kShard, 1));
}

TEST_F(StreamGuardTest, WhereNobodyWasAskedOrNothingWasToldTheRoleAloneCounts) {
  EXPECT_TRUE(May(std::nullopt, kShard, 1));
  EXPECT_TRUE(May(std::nullopt, kData, 0));
  guard_.Learn(View(2, 2), {});  // an older coordinator
  EXPECT_TRUE(May(Identity{Role::kWorker, "x"}, kData, 0, 2));
  EXPECT_FALSE(May(Identity{Role::kWorker, "x"}, kShard, 1, 2));
}

TEST_F(StreamGuardTest, AnOlderViewAndAnotherLineageChangeNothing) {
  guard_.Learn(View(1, 3), Certificates());
  guard_.Learn(View(1, 2), {});
  EXPECT_FALSE(May(Identity{Role::kWorker, "b"}, kData, 0));
  EXPECT_TRUE(May(Identity{Role::kWorker, "b"}, kData, 0, /*lineage=*/2));  // the core's to judge
}

}  // namespace
}  // namespace capstan::exchange

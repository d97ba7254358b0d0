#include "client/text/doctor_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace capstan::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const CoordinatorLook kLook = {"c:7070", "1.0", 0.001, 0.0002};

// Two healthy shards and two healthy workers.
job::v1::DiagnoseResponse Cluster() {
  job::v1::DiagnoseResponse cluster;
  cluster.set_version("1.0");
  job::v1::FolderReport& state = *cluster.add_folders();
  state.set_path("/state");
  state.set_use(job::v1::FOLDER_USE_STATE);
  state.set_free_bytes(int64_t{1} << 30);
  state.set_total_bytes(int64_t{4} << 30);
  for (const std::string name : {"s0", "s1", "w0", "w1"}) {
    job::v1::NodeDiagnosis& node = *cluster.add_nodes();
    node.mutable_node()->set_name(name);
    node.mutable_node()->set_host("host-" + name);
    node.mutable_node()->set_state("READY");
    node.mutable_node()->set_version("1.0");
    node.mutable_node()->set_role(name[0] == 's' ? common::v1::ROLE_PARAM_STORE
                                                 : common::v1::ROLE_WORKER);
    node.set_answered(true);
    node.set_round_trip_seconds(0.002);
    node.set_clock_ahead_seconds(-0.9);  // less than a second plus half the round trip
    for (const std::string shard : {"s0", "s1"}) {
      if (shard == name) continue;
      job::v1::PeerReport& peer = *node.add_peers();
      peer.set_node(shard);
      peer.set_address(shard + ":7080");
      peer.set_round_trip_seconds(0.0005);
      peer.set_bytes_per_second(100 << 20);
    }
  }
  return cluster;
}

Finding Only(const job::v1::DiagnoseResponse& cluster) {
  const std::vector<Finding> findings = FindingsOf(cluster, kLook);
  EXPECT_EQ(findings.size(), 1u) << FindingsText(findings);
  return findings.empty() ? Finding() : findings[0];
}

void Silence(job::v1::PeerReport* peer) {
  peer->set_code(4);
  peer->clear_round_trip_seconds();
  peer->clear_bytes_per_second();
}

TEST(DoctorTextTest, AClusterThatIsWellHasNoFinding) {
  EXPECT_TRUE(FindingsOf(Cluster(), kLook).empty());
  const std::string text = DoctorText(Cluster(), kLook, {}, 0);
  EXPECT_THAT(text,
              AllOf(HasSubstr("w0    worker"), HasSubstr("w0    s1  s1:7080  0.5 ms      100"),
                    HasSubstr("nothing found")));
}

TEST(DoctorTextTest, AShardThatNobodyReachesIsOneFindingAndOnePairAnother) {
  job::v1::DiagnoseResponse cluster = Cluster();
  Silence(cluster.mutable_nodes(3)->mutable_peers(0));  // w1 -> s0
  Finding finding = Only(cluster);
  EXPECT_EQ(finding.kind, "PairUnreachable");
  EXPECT_EQ(finding.subject, "w1 -> s0");
  EXPECT_THAT(finding.sentence, AllOf(HasSubstr("w1 on host host-w1 does not reach s0 at s0:7080, "
                                                "others do"),
                                      HasSubstr("Open TCP port 7080")));

  cluster = Cluster();
  for (int node : {0, 2, 3}) {
    job::v1::PeerReport* peer = cluster.mutable_nodes(node)->mutable_peers(node == 0 ? 0 : 1);
    ASSERT_EQ(peer->node(), "s1");
    Silence(peer);
  }
  finding = Only(cluster);
  EXPECT_EQ(finding.kind, "ShardUnreachable");
  EXPECT_EQ(finding.subject, "s1");
  EXPECT_THAT(finding.sentence, HasSubstr("none of 3 nodes reaches s1 at s1:7080"));
}

TEST(DoctorTextTest, OtherWaysNotToReachAShard) {
  job::v1::DiagnoseResponse cluster = Cluster();
  job::v1::PeerReport* peer = cluster.mutable_nodes(3)->mutable_peers(0);
  Silence(peer);
  peer->set_code(14);
  peer->set_message("Connection refused");
  EXPECT_THAT(Only(cluster).sentence, HasSubstr("Connection refused. Does its service run"));
  peer->set_code(16);
  peer->set_message("token missing");
  EXPECT_EQ(Only(cluster).kind, "ShardRefuses");
  EXPECT_THAT(Only(cluster).sentence, HasSubstr("tokens.json"));
  peer->set_code(12);  // reached, but too old to be measured
  EXPECT_TRUE(FindingsOf(cluster, kLook).empty());
  // A tenth of the others' bandwidth.
  peer->set_code(0);
  peer->set_bytes_per_second(9 << 20);
  EXPECT_EQ(Only(cluster).kind, "SlowPair");
  EXPECT_FALSE(AnyProblem(FindingsOf(cluster, kLook)));
}

TEST(DoctorTextTest, NodesThatAreGoneSilentOrOfAnotherVersion) {
  job::v1::DiagnoseResponse cluster = Cluster();
  job::v1::NodeDiagnosis& node = *cluster.mutable_nodes(2);
  node.mutable_node()->set_version("0.9");
  EXPECT_EQ(Only(cluster).kind, "Version");
  EXPECT_THAT(Only(cluster).sentence,
              HasSubstr("w0 on host host-w0 runs version 0.9, the coordinator 1.0"));
  node.set_answered(false);
  node.clear_peers();
  EXPECT_THAT(Only(cluster).sentence, HasSubstr("did not answer"));
  node.mutable_node()->set_version("1.0");
  EXPECT_EQ(Only(cluster).kind, "NodeSilent");
  node.mutable_node()->set_state("LOST");
  EXPECT_EQ(Only(cluster).kind, "NodeLost");
  cluster.mutable_nodes()->DeleteSubrange(2, 2);
  EXPECT_EQ(Only(cluster).kind, "NoWorker");
}

TEST(DoctorTextTest, ClocksFoldersAndDevices) {
  job::v1::DiagnoseResponse cluster = Cluster();
  cluster.mutable_nodes(1)->set_clock_ahead_seconds(7200);
  EXPECT_EQ(Only(cluster).kind, "Clock");
  EXPECT_THAT(Only(cluster).sentence,
              HasSubstr("the clock of s1 on host host-s1 is 2h00m ahead of the coordinator's"));

  cluster = Cluster();
  job::v1::FolderReport& folder = *cluster.mutable_nodes(0)->add_folders();
  folder.set_path("/ckpt");
  folder.set_use(job::v1::FOLDER_USE_CHECKPOINTS);
  folder.set_total_bytes(int64_t{10} << 30);
  folder.set_free_bytes(int64_t{255} << 20);
  EXPECT_EQ(Only(cluster).kind, "DiskFull");
  EXPECT_THAT(Only(cluster).sentence,
              HasSubstr("/ckpt (checkpoints) of s0 on host host-s0 has 255 MiB free of 10.0 GiB"));
  folder.set_total_bytes(int64_t{1} << 30);  // small, and a quarter of it is free
  EXPECT_TRUE(FindingsOf(cluster, kLook).empty());
  folder.set_error("No such file or directory");
  EXPECT_EQ(Only(cluster).kind, "Folder");

  cluster = Cluster();
  job::v1::DeviceReport& device = *cluster.mutable_nodes(3)->add_devices();
  device.set_name("cuda:0");
  device.set_error("no NVIDIA driver");
  EXPECT_EQ(Only(cluster).kind, "Device");
  EXPECT_THAT(Only(cluster).sentence, HasSubstr("w1 on host host-w1 cannot use cuda:0: no NVIDIA "
                                                "driver. Install or repair the driver there"));
}

TEST(DoctorTextTest, ProgramsGetEveryFieldAndNullWhereNothingIsKnown) {
  job::v1::DiagnoseResponse cluster = Cluster();
  Silence(cluster.mutable_nodes(3)->mutable_peers(0));
  const auto json =
      nlohmann::json::parse(DoctorJson(&cluster, kLook, FindingsOf(cluster, kLook), 1.5));
  EXPECT_EQ(json["seconds"], 1.5);
  EXPECT_EQ(json["coordinator"]["version"], "1.0");
  EXPECT_EQ(json["nodes"].size(), 4u);
  EXPECT_EQ(json["nodes"][2]["role"], "worker");
  ASSERT_EQ(json["pairs"].size(), 6u);
  EXPECT_EQ(json["pairs"][4]["from"], "w1");
  EXPECT_EQ(json["pairs"][4]["reached"], false);
  EXPECT_TRUE(json["pairs"][4]["bytes_per_second"].is_null());
  EXPECT_EQ(json["findings"][0]["kind"], "PairUnreachable");
  EXPECT_EQ(json["findings"][0]["severity"], "problem");
  const auto nobody = nlohmann::json::parse(
      DoctorJson(nullptr, kLook, {{true, "CoordinatorUnreachable", "coordinator", "x"}}, 2));
  EXPECT_TRUE(nobody["coordinator"]["version"].is_null());
  EXPECT_EQ(nobody["findings"].size(), 1u);
}

}  // namespace
}  // namespace capstan::client

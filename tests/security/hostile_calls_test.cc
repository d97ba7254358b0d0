// Hostile calls to a real coordinator over mutual TLS, and their cost for it. Tests are named by
// the rows of docs/security.md.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "client/certs.h"
#include "exchange/wire/frame_codec.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "services/channel/channel.h"
#include "services/endpoint/endpoint.h"
#include "services/files/files.h"
#include "services/process/process.h"
#include "services/sync/mutex.h"
#include "services/version/version.h"
#include "tests/support/node_stream.h"

namespace capstan::tests {
namespace {

using services::Role;
using ::testing::HasSubstr;

constexpr char kSubmit[] = "/capstan.job.v1.JobService/SubmitJob";
constexpr char kDeleteCheckpoint[] = "/capstan.job.v1.CheckpointService/DeleteCheckpoint";
constexpr char kConnect[] = "/capstan.node.v1.NodeService/Connect";
constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kQuota = 256 * kMebibyte;  // ServerOptions::quota_bytes

std::array<uint8_t, 1 << 20> g_zeros;

// `mebibytes` MiB of zeros that cost this process only one.
grpc::ByteBuffer Zeros(int mebibytes) {
  std::vector<grpc::Slice> slices;
  for (int i = 0; i < mebibytes; ++i) {
    slices.emplace_back(g_zeros.data(), g_zeros.size(), grpc::Slice::STATIC_SLICE);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

class HostileCallsTest : public ::testing::Test {
 protected:
  HostileCallsTest() : folder_(*services::MakePrivateDir("capstan-hostile")) {}
  ~HostileCallsTest() override {
    store_.reset();
    process_.reset();
    std::filesystem::remove_all(folder_);
  }
  void SetUp() override { StartCoordinator(/*descriptors=*/0); }
  // `descriptors`: its limit of open files. 0: the system's limit.
  void StartCoordinator(int descriptors) {
    ASSERT_TRUE(client::InitCerts({.folder = folder_ + "/ca"}, absl::Now()).ok());
    Issue(Role::kCoordinator, "c");
    Issue(Role::kClient, "ann");
    Issue(Role::kClient, "bob");
    Issue(Role::kAdmin, "root");
    Issue(Role::kWorker, "w");
    const services::Security own = Of(Role::kCoordinator, "c");
    services::ProcessOptions options;
    options.binary = CAPSTAN_COORDINATOR_BINARY;
    options.args = {
        "--listen",    "127.0.0.1:0",      "--http",
        "127.0.0.1:0", "--tls-cert",       own.tls_cert,
        "--tls-key",   own.tls_key,        "--tls-ca",
        own.tls_ca,    "--tokens",         folder_ + "/ca/tokens.json",
        "--state-dir", folder_ + "/state", "--data-root",
        folder_,       "--lease",          "60s"};  // a node played by a test sends no heartbeats
    if (descriptors > 0) {
      options.args.insert(options.args.begin(),
                          {absl::StrCat("--nofile=", descriptors), options.binary});
      options.binary = "/usr/bin/prlimit";
    }
    const std::vector<std::string> addresses = Spawn(std::move(options), process_);
    ASSERT_EQ(addresses.size(), 2u);
    endpoint_ = *services::ParseEndpoint(addresses[0]);
    http_ = *services::ParseEndpoint(addresses[1]);
  }
  // Starts a shard of this cluster and returns its address.
  services::Endpoint StartStore(const std::string& name) {
    const services::Security own = Of(Role::kParamStore, name);
    services::ProcessOptions options;
    options.binary = CAPSTAN_PARAM_STORE_BINARY;
    options.args = {"--listen",
                    "127.0.0.1:0",
                    "--http",
                    "127.0.0.1:0",
                    "--coordinator",
                    endpoint_.ToString(),
                    "--node",
                    name,
                    "--tls-cert",
                    own.tls_cert,
                    "--tls-key",
                    own.tls_key,
                    "--tls-ca",
                    own.tls_ca,
                    "--token-file",
                    own.token_file,
                    "--tokens",
                    folder_ + "/ca/tokens.json",
                    "--checkpoint-root",
                    folder_};
    const std::vector<std::string> addresses = Spawn(std::move(options), store_);
    EXPECT_EQ(addresses.size(), 2u);
    return addresses.empty() ? services::Endpoint() : *services::ParseEndpoint(addresses[0]);
  }
  // Returns its gRPC and HTTP addresses, once it listens.
  std::vector<std::string> Spawn(services::ProcessOptions options,
                                 std::unique_ptr<services::Process>& kept) {
    {
      MutexLock lock(mu_);
      lines_.clear();
    }
    options.on_line = [this](services::OutputStream, absl::string_view line) {
      MutexLock lock(mu_);
      absl::StrAppend(&lines_, line, "\n");
    };
    auto process = spawner_.Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return {};
    kept = *std::move(process);
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    std::vector<std::string> addresses;
    while (addresses.empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
      MutexLock lock(mu_);
      const size_t at = lines_.find("event=listening grpc=");
      if (at == std::string::npos) continue;
      const std::string line = lines_.substr(at + 21, lines_.find('\n', at) - at - 21);
      addresses = absl::StrSplit(line, " http=");
    }
    MutexLock lock(mu_);
    EXPECT_EQ(addresses.size(), 2u) << lines_;
    return addresses;
  }

  void Issue(Role role, const std::string& name) {
    const auto issued = client::IssueCerts({.role = role,
                                            .name = name,
                                            .hosts = {"127.0.0.1"},
                                            .authority = folder_ + "/ca",
                                            .out = absl::StrCat(folder_, "/", name)},
                                           absl::Now());
    ASSERT_TRUE(issued.ok()) << issued.status();
  }
  services::Security Of(Role role, const std::string& name) const {
    const std::string stem = absl::StrCat(folder_, "/", name, "/", services::RoleName(role));
    return {.tls_cert = stem + ".crt",
            .tls_key = stem + ".key",
            .tls_ca = absl::StrCat(folder_, "/", name, "/ca.crt"),
            .token_file = stem + ".token"};
  }
  std::shared_ptr<grpc::Channel> Dial(const services::Security& security) const {
    services::ChannelOptions options;
    options.peer = endpoint_;
    options.security = security;
    options.retry = false;
    options.own_connection = true;
    auto channel = services::MakeChannel(options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return *channel;
  }
  std::shared_ptr<grpc::Channel> DialAsAnn() const { return Dial(Of(Role::kClient, "ann")); }

  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                           const grpc::ByteBuffer& request, grpc::ClientContext& context) {
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    grpc::ByteBuffer response;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(), rpc, &context, request, &response);
  }
  static std::string Answer(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                            const grpc::ByteBuffer& request) {
    const auto context = services::NewContext(absl::Seconds(60));
    const grpc::Status status = Call(channel, method, request, *context);
    return absl::StrCat(status.error_code(), " ", status.error_message());
  }
  // The end of a download of a checkpoint's manifest.
  static std::string ReadCheckpoint(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& job_id) {
    job::v1::DownloadCheckpointRequest request;
    request.set_job_id(job_id);
    request.set_checkpoint("1-1");
    request.set_name("manifest.json");
    const auto context = services::NewContext(absl::Seconds(20));
    const auto stub = job::v1::CheckpointService::NewStub(channel);
    const auto reader = stub->DownloadCheckpoint(context.get(), request);
    job::v1::DownloadCheckpointResponse response;
    while (reader->Read(&response)) continue;
    const grpc::Status status = reader->Finish();
    return absl::StrCat(status.error_code(), " ", status.error_message());
  }
  // A good call, so that the costs of the first call are paid, and to show that the server lives.
  void ExpectAlive() const {
    const auto context = services::NewContext(absl::Seconds(20));
    job::v1::ListJobsResponse response;
    const grpc::Status status =
        job::v1::JobService::NewStub(DialAsAnn())->ListJobs(context.get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // The coordinator's peak memory so far.
  int64_t PeakBytes() const {
    const std::string status =
        *services::ReadWholeFile(absl::StrCat("/proc/", process_->pid(), "/status"), 1 << 16);
    for (const absl::string_view line : absl::StrSplit(status, '\n')) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      int64_t kibibytes = 0;
      if (words.size() == 3 && words[0] == "VmHWM:" && absl::SimpleAtoi(words[1], &kibibytes)) {
        return kibibytes * 1024;
      }
    }
    ADD_FAILURE() << "no VmHWM";
    return 0;
  }
  // How much the coordinator's peak memory grows while `act` runs.
  template <typename Act>
  int64_t Growth(const std::string& what, const Act& act) {
    ExpectAlive();
    const int64_t before = PeakBytes();
    act();
    const int64_t growth = PeakBytes() - before;
    RecordProperty(what, absl::StrCat(growth / kMebibyte, " MiB"));
    std::printf("[ MEASURED ] %s: +%.1f MiB\n", what.c_str(),
                static_cast<double>(growth) / static_cast<double>(kMebibyte));
    ExpectAlive();
    return growth;
  }

  // 400 connections that send nothing. Those that the server's kernel does not accept at once are
  // still being made.
  static std::vector<int> SilentConnections(const services::Endpoint& to) {
    std::vector<int> silent;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(to.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 400; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) break;
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        EXPECT_EQ(errno, EINPROGRESS);
      }
      silent.push_back(fd);
    }
    return silent;
  }

  // Waits for the close.
  static bool ClosedByServer(int fd) {
    pollfd polled = {fd, POLLIN, 0};
    char byte = 0;
    return poll(&polled, 1, 60'000) == 1 && recv(fd, &byte, 1, 0) <= 0;
  }

  const std::string folder_;
  services::Endpoint endpoint_, http_;
  Mutex mu_;
  std::string lines_ ABSL_GUARDED_BY(mu_);
  services::ProcessSpawner spawner_;
  std::unique_ptr<services::Process> process_, store_;
};

TEST_F(HostileCallsTest, Row2ABadTokenIsRefusedBeforeItsBodyIsRead) {
  services::Security security = Of(Role::kClient, "ann");
  security.token_file = folder_ + "/forged";
  ASSERT_TRUE(services::WriteFileAtomically(security.token_file, "capstan_forged_0123456789",
                                            {.mode = 0600})
                  .ok());
  const auto channel = Dial(security);
  EXPECT_EQ(Answer(channel, kDeleteCheckpoint, Bytes("")),
            "16 capstan: token missing, invalid or expired");
  EXPECT_EQ(ReadCheckpoint(channel, "j"), "16 capstan: token missing, invalid or expired");
  const int64_t growth = Growth("bad token, 512 MiB", [&] {
    EXPECT_EQ(Answer(channel, kSubmit, Zeros(512)),
              "16 capstan: token missing, invalid or expired");
  });
  EXPECT_LT(growth, 32 * kMebibyte);
}

// A job that waits for nodes.
job::v1::SubmitJobRequest SmallJob(const std::string& request_id) {
  job::v1::SubmitJobRequest request;
  request.set_request_id(request_id);
  job::v1::JobSpec& spec = *request.mutable_spec();
  spec.set_version(1);
  spec.set_name("digits");
  spec.mutable_resources()->set_num_workers(1);
  spec.mutable_model()->set_name("mlp");
  spec.mutable_data()->set_format("synthetic_digits");
  spec.mutable_data()->set_train_samples(80);
  spec.mutable_data()->set_test_samples(20);
  spec.mutable_kvstore()->set_type("local");
  spec.mutable_training()->set_epochs(1);
  spec.mutable_training()->set_global_batch_size(16);
  spec.mutable_training()->mutable_optimizer()->set_name("sgd");
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.1);
  return request;
}

TEST_F(HostileCallsTest, Row3AnotherUsersJobIsSeenAndLeftAlone) {
  job::v1::SubmitJobResponse submitted;
  grpc::Status status =
      job::v1::JobService::NewStub(DialAsAnn())
          ->SubmitJob(services::NewContext(absl::Seconds(20)).get(), SmallJob("r"), &submitted);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto bob = Dial(Of(Role::kClient, "bob"));
  job::v1::GetJobRequest get;
  get.set_job_id(submitted.job_id());
  job::v1::GetJobResponse got;
  status = job::v1::JobService::NewStub(bob)->GetJob(services::NewContext(absl::Seconds(20)).get(),
                                                     get, &got);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(got.job().owner(), "ann");

  // All of these messages begin with the job's id.
  const grpc::ByteBuffer named = Bytes(get.SerializeAsString());
  const std::string refusal =
      absl::StrCat("7 job ", submitted.job_id(), " is ann's, not bob's; an admin may, too");
  for (const char* method : {"CancelJob", "SuspendJob", "ResumeJob", "RetryJob", "UpdateJob",
                             "MoveShard", "StreamLogs", "VerifyCheckpoint"}) {
    EXPECT_EQ(Answer(bob, absl::StrCat("/capstan.job.v1.JobService/", method).c_str(), named),
              refusal)
        << method;
  }
  EXPECT_EQ(Answer(bob, kDeleteCheckpoint, named), refusal);
  EXPECT_EQ(ReadCheckpoint(bob, submitted.job_id()), refusal);
  EXPECT_EQ(ReadCheckpoint(Dial(Of(Role::kAdmin, "root")), submitted.job_id()),
            absl::StrCat("5 job ", submitted.job_id(), " has no checkpoint 1-1 and no other one"));
  // Nor may anybody begin from another person's checkpoint.
  job::v1::SubmitJobRequest from = SmallJob("from");
  from.mutable_spec()->mutable_model()->set_initial_weights(
      absl::StrCat("file://", folder_, "/state/checkpoints/", submitted.job_id(), "/1-1"));
  EXPECT_EQ(Answer(bob, kSubmit, Bytes(from.SerializeAsString())),
            absl::StrCat("7 model.initial_weights: ", refusal.substr(2)));
  // Nor by a link whose name is under the data root.
  const std::string theirs = absl::StrCat(folder_, "/state/checkpoints/", submitted.job_id());
  std::filesystem::create_directories(theirs + "/1-1");
  std::filesystem::create_directories(folder_ + "/bob/2-2");
  ASSERT_TRUE(services::WriteFileAtomically(theirs + "/1-1/w.safetensors", "x").ok());
  std::filesystem::create_symlink(theirs + "/1-1", folder_ + "/bob/1-1");
  std::filesystem::create_symlink("1-1/w.safetensors", folder_ + "/bob/w.safetensors");
  std::filesystem::create_symlink("../1-1/w.safetensors", folder_ + "/bob/2-2/shard-0.safetensors");
  for (const auto& [name, place] :
       std::vector<std::pair<std::string, std::string>>{{"1-1", "/1-1"},
                                                        {"w.safetensors", "/1-1/w.safetensors"},
                                                        {"2-2", "/1-1/w.safetensors"}}) {
    const std::string uri = absl::StrCat("file://", folder_, "/bob/", name);
    from.mutable_spec()->mutable_model()->set_initial_weights(uri);
    EXPECT_EQ(Answer(bob, kSubmit, Bytes(from.SerializeAsString())),
              absl::StrCat("7 model.initial_weights: ", uri, ": a link leads to ", theirs, place,
                           ": ", refusal.substr(2)));
  }
  EXPECT_EQ(Answer(bob, kSubmit, Bytes(SmallJob("r").SerializeAsString())),
            "6 request_id r: used by somebody else");
  job::v1::SetLogLevelRequest level;
  level.set_level("debug");
  const std::string admin = "/capstan.job.v1.AdminService/";
  for (const char* method : {"DrainNode", "UndrainNode", "SetLogLevel", "Diagnose"}) {
    EXPECT_EQ(Answer(bob, (admin + method).c_str(), Bytes(level.SerializeAsString())),
              absl::StrCat("7 role client may not call ", method, ": want admin"));
  }
  EXPECT_EQ(Answer(bob, (admin + "ListNodes").c_str(), Bytes("")), "0 ");
  EXPECT_EQ(Answer(Dial(Of(Role::kWorker, "w")), (admin + "ListNodes").c_str(), Bytes("")),
            "7 role worker may not call ListNodes");

  const auto root = Dial(Of(Role::kAdmin, "root"));
  EXPECT_EQ(Answer(root, (admin + "SetLogLevel").c_str(), Bytes(level.SerializeAsString())), "0 ");
  EXPECT_EQ(Answer(DialAsAnn(), "/capstan.job.v1.JobService/SuspendJob", named), "0 ");
  EXPECT_EQ(Answer(root, "/capstan.job.v1.JobService/CancelJob", named), "0 ");
}

TEST_F(HostileCallsTest, Row4AWorkerMaySubmitNothingAndAClientIsNoNode) {
  EXPECT_EQ(Answer(Dial(Of(Role::kWorker, "w")), kSubmit, Bytes("")),
            "7 role worker may not call SubmitJob");
  EXPECT_EQ(Answer(DialAsAnn(), kConnect, Bytes("")), "7 role client may not call Connect");
  EXPECT_EQ(Answer(Dial(Of(Role::kWorker, "w")), kDeleteCheckpoint, Bytes("")),
            "7 role worker may not call DeleteCheckpoint");
  EXPECT_EQ(ReadCheckpoint(Dial(Of(Role::kWorker, "w")), "j"),
            "7 role worker may not call DownloadCheckpoint");
}

// A shard's answer to a Hello: "hello", or the status with which it ends the stream.
std::string Exchange(const services::Endpoint& shard, const services::Security& security,
                     param_store::v1::ExchangeRequest hello) {
  hello.mutable_hello()->set_speaks(exchange::wire::kSpeaks);
  exchange::wire::SetCheck(&hello, /*lineage=*/0);
  services::ChannelOptions options;
  options.peer = shard;
  options.security = security;
  options.peer_role = Role::kParamStore;
  options.own_connection = true;
  const auto stub = param_store::v1::ParamStoreService::NewStub(*services::MakeChannel(options));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  services::SetTimeout(context, absl::Seconds(60));
  const auto stream = stub->Exchange(&context);
  stream->Write(hello);
  param_store::v1::ExchangeResponse response;
  if (stream->Read(&response) && response.has_hello()) {
    context.TryCancel();
    while (stream->Read(&response)) continue;
    stream->Finish();
    return "hello";
  }
  const grpc::Status status = stream->Finish();
  return absl::StrCat(status.error_code(), " ", status.error_message());
}

class Registering : public NodeStream {
 public:
  using NodeStream::NodeStream;
  // The number that the node got; 0: it was refused.
  int64_t Incarnation() {
    node::v1::ConnectResponse response;
    return Read(&response) ? response.registered().incarnation() : 0;
  }
  // The next message of a kind; an empty one if the stream has ended.
  node::v1::ConnectResponse Next(node::v1::ConnectResponse::MessageCase kind) {
    node::v1::ConnectResponse response;
    while (Read(&response)) {
      if (response.message_case() == kind) return response;
    }
    return {};
  }
  // Waits for the stream's end and returns its reason.
  std::string Ending() {
    const grpc::Status status = End();
    return absl::StrCat(status.error_code(), " ", status.error_message());
  }
};

TEST_F(HostileCallsTest, Row4aALiveWorkerIsTakenOverByNobody) {
  Issue(Role::kWorker, "rogue");
  const auto dial = [&](const char* name) { return Dial(Of(Role::kWorker, name)); };
  node::v1::Register reg;
  reg.set_name("w-1");
  reg.set_role(common::v1::ROLE_WORKER);
  reg.add_devices()->set_name("cpu");
  reg.set_resume_key("0123456789abcdef");
  Registering honest(dial("w"), reg);
  const int64_t incarnation = honest.Incarnation();
  ASSERT_GT(incarnation, 0);

  // Everything that `node list` shows, from a process with the same certificate that never saw the
  // key.
  node::v1::Register stolen = reg;
  stolen.clear_resume_key();
  stolen.set_last_incarnation(incarnation);
  Registering rogue(dial("rogue"), stolen);
  EXPECT_EQ(rogue.Incarnation(), 0);
  EXPECT_EQ(
      rogue.Ending(),
      "7 certificate rogue may not register node w-1: a certificate NAME has the nodes NAME and "
      "NAME-*");
  for (const char* key : {"", "fedcba9876543210"}) {
    stolen.set_resume_key(key);
    Registering sibling(dial("w"), stolen);
    EXPECT_EQ(sibling.Incarnation(), 0);
    EXPECT_THAT(sibling.Ending(), HasSubstr("6 register.name: a live node on host"));
  }

  // The process itself comes back on a new stream, whatever happened to the old one.
  Registering again(dial("w"), reg);
  EXPECT_EQ(again.Incarnation(), incarnation);
  EXPECT_EQ(honest.Ending(), "10 the node has connected again");
  // Under its own name the other process is an ordinary worker.
  reg.set_name("rogue-1");
  Registering own(dial("rogue"), reg);
  EXPECT_GT(own.Incarnation(), incarnation);
}

TEST_F(HostileCallsTest, Row4bAWorkerSpeaksNeitherAsAShardNorAsAnotherWorker) {
  Issue(Role::kWorker, "rogue");
  Issue(Role::kParamStore, "s");
  node::v1::Register reg;
  reg.set_name("w");
  reg.set_role(common::v1::ROLE_PARAM_STORE);
  reg.set_data_address("127.0.0.1:1");
  EXPECT_EQ(Registering(Dial(Of(Role::kWorker, "w")), reg).Ending(),
            "7 role worker may not register as ROLE_PARAM_STORE");

  // A job of worker w and shard s. This test plays its task.
  const services::Endpoint shard = StartStore("s");
  reg.set_role(common::v1::ROLE_WORKER);
  reg.clear_data_address();
  reg.set_version(std::string(Version()));  // the same as the store's, since a job has one version
  reg.add_devices()->set_name("cpu");
  Registering worker(Dial(Of(Role::kWorker, "w")), reg);
  ASSERT_GT(worker.Incarnation(), 0);
  node::v1::ConnectRequest beat;
  beat.mutable_heartbeat();
  worker.Say(beat);
  job::v1::SubmitJobRequest job = SmallJob("r");
  job.mutable_spec()->mutable_resources()->set_num_shards(1);
  job.mutable_spec()->mutable_kvstore()->set_type("dist_sync");
  EXPECT_EQ(Answer(DialAsAnn(), kSubmit, Bytes(job.SerializeAsString())).substr(0, 2), "0 ");
  const node::v1::Probe probe = worker.Next(node::v1::ConnectResponse::kProbe).probe();
  node::v1::ConnectRequest answer;
  answer.mutable_probe_result()->set_probe_id(probe.probe_id());
  answer.mutable_probe_result()->set_job_id(probe.job_id());
  common::v1::DatasetInfo& data = *answer.mutable_probe_result()->mutable_dataset();
  data.set_train_samples(80);
  data.set_test_samples(20);
  data.set_channels(1);
  data.set_height(28);
  data.set_width(28);
  data.set_num_classes(10);
  worker.Say(answer);
  const node::v1::StartTask task =
      worker.Next(node::v1::ConnectResponse::kStartTask).start_task();  // so the shard is ready
  ASSERT_EQ(task.job_id(), probe.job_id());

  param_store::v1::ExchangeRequest hello;
  hello.mutable_hello()->set_job_id(task.job_id());
  hello.mutable_hello()->set_spec_digest(task.spec_digest());
  hello.mutable_hello()->set_lineage(task.view().lineage());
  hello.mutable_hello()->set_kind(param_store::v1::STREAM_KIND_DATA);
  hello.mutable_hello()->set_have_version(-1);
  EXPECT_EQ(Exchange(shard, Of(Role::kWorker, "w"), hello), "hello");
  EXPECT_EQ(Exchange(shard, Of(Role::kWorker, "rogue"), hello),
            "7 worker 0 is node w of certificate w, not of rogue");
  EXPECT_EQ(Exchange(shard, Of(Role::kParamStore, "s"), hello),
            "7 role param_store may not speak as a task");
  hello.mutable_hello()->set_kind(param_store::v1::STREAM_KIND_SHARD);
  EXPECT_EQ(Exchange(shard, Of(Role::kWorker, "w"), hello),
            "7 role worker may not speak as a shard");
}

TEST_F(HostileCallsTest, Row5AHugeMessageIsRefusedWithinTheQuota) {
  const auto channel = DialAsAnn();
  const int64_t growth = Growth("512 MiB message", [&] {
    EXPECT_THAT(Answer(channel, kSubmit, Zeros(512)), HasSubstr("8 "));
  });
  EXPECT_LT(growth, 2 * kQuota);
}

TEST_F(HostileCallsTest, Row6AGzipBombIsRefusedUnread) {
  const auto channel = DialAsAnn();
  // gRPC compresses before it sends anything. On a busy machine that would take longer for 512 MiB
  // than the server allows a connection without a call.
  const int64_t growth = Growth("gzip of 128 MiB", [&] {
    const auto context = services::NewContext(absl::Seconds(120));
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    const grpc::Status status = Call(channel, kSubmit, Zeros(128), *context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("Compression algorithm 'gzip' is disabled"));
  });
  EXPECT_LT(growth, 32 * kMebibyte);
}

TEST_F(HostileCallsTest, Row7LargeMetadataIsRefused) {
  const auto context = services::NewContext(absl::Seconds(20));
  context->AddMetadata("x", std::string(20'000, 'a'));
  EXPECT_EQ(Call(DialAsAnn(), kSubmit, Bytes(""), *context).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectAlive();
}

TEST_F(HostileCallsTest, Rows8And9GarbageAndMissingFieldsAreTheCallersMistake) {
  const auto channel = DialAsAnn();
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "\x12\xff";  // nested messages that never end
  for (const std::string& garbage : {std::string("\xff\xff\xff\xff"), std::string("\x0a\x7fxx"),
                                     deep, std::string("\x0a\x02\xc3\x28")}) {
    // gRPC's callback API answers like this, without a message, if the bytes are no valid message.
    EXPECT_EQ(Answer(channel, kSubmit, Bytes(garbage)), "12 ");
  }
  // Field 1000 of an unknown kind, and nothing else.
  EXPECT_THAT(Answer(channel, kSubmit, Bytes("\xc2\x3e\x01x")),
              HasSubstr("3 request_id: is empty"));
  ExpectAlive();
}

TEST_F(HostileCallsTest, Row18PathsOutOfTheDataRootAreRefused) {
  ASSERT_TRUE(services::EnsureDir(folder_ + "/set").ok());
  std::filesystem::create_symlink("/etc", folder_ + "/out");
  for (const std::string& uri :
       {std::string("file:///etc/passwd"), "file://" + folder_ + "/../etc",
        "file://" + folder_ + "/out", std::string("file:///proc/self/environ"),
        std::string("http://169.254.169.254/latest")}) {
    job::v1::SubmitJobRequest request;
    request.set_request_id("r");
    request.mutable_spec()->mutable_data()->set_uri(uri);
    job::v1::SubmitJobResponse response;
    const auto context = services::NewContext(absl::Seconds(20));
    const grpc::Status status =
        job::v1::JobService::NewStub(DialAsAnn())->SubmitJob(context.get(), request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << uri;
    EXPECT_THAT(status.error_message(), HasSubstr("data.uri: ")) << uri;
  }
}

TEST_F(HostileCallsTest, Row23SilentConnectionsAreClosedAndOthersAreServed) {
  const std::vector<int> silent = SilentConnections(endpoint_);
  ASSERT_EQ(silent.size(), 400u);
  ExpectAlive();
  // The limit of a handshake is 5 s.
  for (const int fd : silent) {
    EXPECT_TRUE(ClosedByServer(fd));
    close(fd);
  }
  ExpectAlive();
}

class FewDescriptorsTest : public HostileCallsTest {
 protected:
  void SetUp() override { StartCoordinator(/*descriptors=*/200); }
};

TEST_F(FewDescriptorsTest, Row23ConnectionsLeaveDescriptorsForFiles) {
  const auto channel = DialAsAnn();
  const auto submit = [&](const std::string& request_id) {
    return Answer(channel, kSubmit, Bytes(SmallJob(request_id).SerializeAsString()));
  };
  EXPECT_EQ(submit("before"), "0 ");
  std::vector<int> silent = SilentConnections(http_);
  for (const int fd : SilentConnections(endpoint_)) silent.push_back(fd);
  ASSERT_EQ(silent.size(), 800u);
  EXPECT_TRUE(ClosedByServer(silent.back()));  // so all earlier ones are settled
  std::error_code error;
  const auto files =
      std::filesystem::directory_iterator(absl::StrCat("/proc/", process_->pid(), "/fd"), error);
  if (!error) {  // otherwise only root may look
    // gRPC leaves a quarter of the 200 free, and HTTP uses at most 17 of that.
    EXPECT_LE(std::distance(begin(files), end(files)), 150 + 17);
  }
  EXPECT_EQ(submit("meanwhile"), "0 ");
  for (const int fd : silent) close(fd);
  // After the flood, new connections are accepted again.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::string answer;
  while (answer != "0 " && absl::Now() < deadline) {
    answer = Answer(DialAsAnn(), kSubmit, Bytes(SmallJob("after").SerializeAsString()));
  }
  EXPECT_EQ(answer, "0 ");
}

TEST_F(HostileCallsTest, Row25TheProcessLeavesNoCoreFile) {
  const std::string limits =
      *services::ReadWholeFile(absl::StrCat("/proc/", process_->pid(), "/limits"), 1 << 16);
  EXPECT_THAT(limits, ::testing::ContainsRegex("Max core file size *0 *0 "));
}

}  // namespace
}  // namespace capstan::tests

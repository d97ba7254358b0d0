#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/launch/authority.h"
#include "client/launch/batch.h"
#include "client/launch/bundle.h"
#include "client/launch/launchers.h"
#include "client/launch/reach.h"
#include "client/launch/scheduler.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/secret_file.h"

namespace capstan::client {
namespace {

using services::Role;

NodeBundle SomeBundle() {
  NodeBundle bundle;
  bundle.role = Role::kParamStore;
  bundle.name = "s1";
  bundle.address = "10.0.0.2";
  bundle.coordinator = "10.0.0.1:7070";
  bundle.authority = "-----BEGIN\nMII\n";
  bundle.key = "secret";
  bundle.token = "capstan_token";
  bundle.workers_of_host = 3;
  bundle.job_id = "lenet-x3n9k4";
  bundle.state_dir = "/out/lenet-x3n9k4/state";
  bundle.env = {"A=b c"};
  return bundle;
}

TEST(BundleTest, ALineGoesToItsRankAlone) {
  const std::string line = FormatBundleLine(3, SomeBundle());
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const std::string text = line.substr(0, line.size() - 1);
  EXPECT_FALSE(ParseBundleLine(4, text).has_value());
  const auto bundle = ParseBundleLine(3, text);
  ASSERT_TRUE(bundle.has_value());
  ASSERT_TRUE(bundle->ok()) << bundle->status();
  EXPECT_EQ(BundleText(**bundle), BundleText(SomeBundle()));
  EXPECT_EQ((*bundle)->authority, "-----BEGIN\nMII\n");
  EXPECT_EQ((*bundle)->env, std::vector<std::string>{"A=b c"});
}

TEST(BundleTest, ErrorsNameTheKeyAndNoValue) {
  std::string text = BundleText(SomeBundle());
  text.replace(text.find("\"key\""), 5, "\"kez\"");
  const absl::Status status = ParseBundle(text).status();
  EXPECT_EQ(status.message(), "bundle: 'key' is missing or of another type");
  EXPECT_EQ(ParseBundle("[").status().message(), "bundle: it is not a JSON object");
  for (const char* number : {"0", "-1", "1e300", "4294967297", "\"2\""}) {
    std::string other = BundleText(SomeBundle());
    other.replace(other.find("\"nodes\":1"), 9, absl::StrCat("\"nodes\":", number));
    EXPECT_EQ(ParseBundle(other).status().message(),
              "bundle: 'nodes' is not a number from 1 to 65536")
        << number;
  }
}

TEST(BundleTest, AnAddressThatIsNoTextEndsNothing) {
  NodeBundle bundle = SomeBundle();
  bundle.address = "10.0.0.2\xff";  // hosts report any bytes
  ASSERT_TRUE(ParseBundle(BundleText(bundle)).ok());
}

TEST(NodeLineTest, LinesOfOthersAreNone) {
  const std::string line = FormatNodeLine({12, NodeLine::Kind::kHello, "10.0.0.2 node b"});
  EXPECT_EQ(line, "capstan-node 12 hello 10.0.0.2 node b\n");
  const auto parsed = ParseNodeLine(line.substr(0, line.size() - 1));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->rank, 12);
  EXPECT_EQ(parsed->kind, NodeLine::Kind::kHello);
  EXPECT_EQ(parsed->text, "10.0.0.2 node b");
  for (const char* other : {"", "capstan-node", "capstan-node x out y", "capstan-node 1 new y",
                            "Permission denied (publickey)."}) {
    EXPECT_FALSE(ParseNodeLine(other).has_value()) << other;
  }
}

class AuthorityTest : public testing::Test {
 protected:
  ~AuthorityTest() override { (void)services::RemoveTree("/tmp", folder_); }
  const std::string folder_ = *services::MakePrivateDir("capstan-launch-test");
};

TEST_F(AuthorityTest, MembersGetPapersThatAgreeInPrivateFiles) {
  const absl::Time now = absl::Now();
  const auto authority =
      LaunchAuthority::Create({{Role::kParamStore, "s1"}, {Role::kWorker, "w0"}}, now);
  ASSERT_TRUE(authority.ok()) << authority.status();
  NodeBundle bundle = SomeBundle();
  ASSERT_TRUE(authority->Equip(bundle, now).ok());
  EXPECT_TRUE(services::CheckKeyPair({bundle.certificate, bundle.key}, bundle.authority, now).ok());
  const services::Identity want = {Role::kParamStore, "s1"};
  EXPECT_EQ(*services::IdentityOf(bundle.certificate), want);
  EXPECT_EQ(bundle.tokens.find(bundle.token), std::string::npos) << "tokens.json has hashes alone";

  const auto security = WriteSecrets(bundle, folder_);
  ASSERT_TRUE(security.ok()) << security.status();
  for (const std::string& path :
       {security->tls_ca, security->tls_key, security->token_file, security->tokens}) {
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << path;
  }
  EXPECT_EQ(*services::ReadSecretFile(security->token_file), bundle.token + "\n");
}

LaunchOptions Options(Launcher launcher, std::vector<std::string> hosts) {
  LaunchOptions options;
  options.launcher = launcher;
  options.hosts = std::move(hosts);
  options.program = "/opt/my apps/capstan";
  options.ssh = "ssh -p 22";
  return options;
}

std::string Joined(const NodeCommand& command) { return absl::StrJoin(command.args, "|"); }

TEST(LaunchersTest, SshGoesRoundTheHostsAndQuotesForTheirShell) {
  LaunchOptions options = Options(Launcher::kSsh, {"a", "me@b"});
  options.sync_dst_dir = "/tmp/it's";
  const LaunchCommands commands = MakeLaunchCommands(options, 3, "10.0.0.1:7070", "/self", false);
  EXPECT_EQ(commands.way, BundleWay::kStdin);
  EXPECT_TRUE(commands.addresses.empty());
  ASSERT_EQ(commands.nodes.size(), 3u);
  EXPECT_EQ(Joined(commands.nodes[1]),
            "ssh|-p|22|me@b|cd '/tmp/it'\\''s' && exec '/opt/my apps/capstan' launch-node --by "
            "stdin --coordinator 10.0.0.1:7070 --rank 1");
  EXPECT_EQ(commands.nodes[2].where, "a");
  EXPECT_EQ(SyncCommands(options)[1],
            "tar -cf - --exclude=./capstan-out . | ssh -p 22 me@b 'mkdir -p "
            "'\\''/tmp/it'\\''\\'\\'''\\''s'\\'' && tar -xf - "
            "-C '\\''/tmp/it'\\''\\'\\'''\\''s'\\'''");
}

// Hosts as in the host files of MXNet's launcher.
TEST(LaunchersTest, AHostMayHaveThePortOfItsSsh) {
  LaunchOptions options = Options(Launcher::kSsh, {"me@a:2222", "b", "fe80::1", "c:"});
  options.ssh = "ssh";
  options.sync_dst_dir = "/tmp/job";
  const LaunchCommands commands = MakeLaunchCommands(options, 4, "10.0.0.1:7070", "/self", false);
  EXPECT_EQ(Joined(commands.nodes[0]).find("ssh|-p|2222|me@a|cd /tmp/job"), 0u)
      << Joined(commands.nodes[0]);
  EXPECT_EQ(commands.nodes[0].where, "me@a");
  EXPECT_EQ(Joined(commands.nodes[1]).find("ssh|b|cd"), 0u);
  EXPECT_EQ(Joined(commands.nodes[2]).find("ssh|fe80::1|cd"), 0u);
  EXPECT_EQ(Joined(commands.nodes[3]).find("ssh|c:|cd"), 0u);
  EXPECT_NE(SyncCommands(options).back().find("| ssh -p 2222 me@a 'mkdir"), std::string::npos)
      << SyncCommands(options).back();
}

TEST(LaunchersTest, ANameAloneTakesTheValueThatItHasHere) {
  setenv("CAPSTAN_TEST_OF_ENV", "a b=c", 1);
  EXPECT_EQ(*ReadEnv({"A=1", "CAPSTAN_TEST_OF_ENV", "B="}),
            (std::vector<std::string>{"A=1", "CAPSTAN_TEST_OF_ENV=a b=c", "B="}));
  unsetenv("CAPSTAN_TEST_OF_ENV");
  EXPECT_EQ(ReadEnv({"CAPSTAN_TEST_OF_ENV"}).status().message(),
            "--env CAPSTAN_TEST_OF_ENV: it is not set here; want NAME=VALUE");
  for (const char* bad : {"", "=1", "A=\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadEnv({bad}).status())) << bad;
  }
}

TEST(LaunchersTest, MpiGetsTheNameOfTheVariableAlone) {
  const LaunchCommands commands =
      MakeLaunchCommands(Options(Launcher::kMpi, {"a", "b"}), 3, "10.0.0.1:7070", "/self", true);
  EXPECT_EQ(commands.way, BundleWay::kVariable);
  ASSERT_EQ(commands.addresses.size(), 1u);
  ASSERT_EQ(commands.nodes.size(), 1u);
  EXPECT_EQ(commands.nodes[0].ranks, 3);
  const std::string args = Joined(commands.nodes[0]);
  EXPECT_NE(args.find("|--host|a:3,b:3|"), std::string::npos) << args;
  EXPECT_NE(args.find("|-np|3|-x|CAPSTAN_LAUNCH_BUNDLES|/opt"), std::string::npos) << args;
  EXPECT_NE(args.find("|--enable-recovery|"), std::string::npos) << args;
  EXPECT_EQ(Joined(commands.addresses[0]).find("BUNDLES"), std::string::npos);
}

TEST(LaunchersTest, SlurmRunsOneCommandForAll) {
  const LaunchCommands commands =
      MakeLaunchCommands(Options(Launcher::kSlurm, {"a", "b"}), 3, "10.0.0.1:7070", "/self", false);
  ASSERT_EQ(commands.nodes.size(), 1u);
  const std::string args = Joined(commands.nodes[0]);
  EXPECT_NE(args.find("srun|--ntasks|3|--input=all|"), std::string::npos) << args;
  EXPECT_NE(args.find("|--nodelist|a,b|--nodes|2|"), std::string::npos) << args;
}

TEST(LaunchersTest, AQueueIsServedByAProcessOfOurs) {
  LaunchOptions options = Options(Launcher::kSge, {"a", "b"});
  options.shared_dir = "/home/me";
  options.launcher_args = {"-q", "fast.q"};
  const LaunchCommands commands = MakeLaunchCommands(options, 3, "10.0.0.1:7070", "/self", false);
  EXPECT_EQ(commands.way, BundleWay::kStdin);
  ASSERT_EQ(commands.nodes.size(), 1u);
  EXPECT_EQ(commands.nodes[0].where, "qsub");
  EXPECT_EQ(Joined(commands.nodes[0]),
            "/self|launch-batch|--ranks|3|--shared-dir|/home/me|--host=a|--host=b|"
            "--launcher-arg=-q|--launcher-arg=fast.q|--|/opt/my apps/capstan|launch-node|--by|"
            "folder|--coordinator|10.0.0.1:7070");
}

TEST(BatchTest, TheScriptOfARankQuotesAndSaysNothingSecret) {
  BatchOptions options;
  options.folder = "/data/it's";
  options.node = {"/opt/my apps/capstan", "launch-node"};
  EXPECT_EQ(RankScript(options, "SGE_TASK_ID", "/home/a b/x"),
            "#!/bin/sh\n"
            "rank=$((SGE_TASK_ID - 1))\n"
            "[ -e '/home/a b/x'/rank.sh ] || exit 0\n"
            "umask 077\n"
            "exec >>'/home/a b/x'/$rank.out 2>&1 </dev/null\n"
            "cd '/data/it'\\''s' || exit\n"
            "exec '/opt/my apps/capstan' launch-node --folder '/home/a b/x' --rank $rank\n");
}

TEST(GridEngineTest, AnswersAreRead) {
  EXPECT_EQ(*ParseQsub("12.1-3:1\n"), "12");
  EXPECT_EQ(*ParseQsub("7\n"), "7");
  EXPECT_TRUE(absl::IsInternal(ParseQsub("Your job 12 has been submitted\n").status()));
  EXPECT_TRUE(absl::IsInternal(ParseQsub("").status()));

  EXPECT_TRUE(ParseQstat(true, "job_number:  12\nscheduling info: no free slot\n", "").ok());
  EXPECT_TRUE(ParseQstat(false, "", "error: unable to contact qmaster\n").ok());
  EXPECT_TRUE(absl::IsAborted(ParseQstat(false, "", "Following jobs do not exist: \n12\n")));
  const absl::Status status =
      ParseQstat(true, "job_number: 12\nerror reason    1:  no such cwd\n", "");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "error reason    1:  no such cwd");
}

TEST(YarnTest, TheApplicationIsOfTheDistributedShell) {
  const auto json =
      nlohmann::json::parse(YarnApplication("application_1_2", "/home/me/rank.sh", 3, {"--debug"}));
  EXPECT_EQ(json["application-id"], "application_1_2");
  EXPECT_EQ(json["am-container-spec"]["commands"]["command"],
            "printf %s '/bin/sh /home/me/rank.sh' >shellCommands && exec {{JAVA_HOME}}/bin/java "
            "-Xmx256m org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster "
            "--debug --container_memory 2048 --container_vcores 1 --priority 0 --num_containers 3 "
            "1><LOG_DIR>/AppMaster.stdout 2><LOG_DIR>/AppMaster.stderr");
  EXPECT_EQ(json["am-container-spec"]["environment"]["entry"][0]["key"], "CLASSPATH");

  EXPECT_EQ(ResourceManagerEndpoint("http://rm:8088/")->ToString(), "rm:8088");
  for (const char* url : {"", "rm:8088", "https://rm:8088", "http://rm", "http://unix:/x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ResourceManagerEndpoint(url).status())) << url;
  }
}

TEST_F(AuthorityTest, HostsComeFromAListOrAFile) {
  EXPECT_EQ(*ReadHosts("a,me@b"), (std::vector<std::string>{"a", "me@b"}));
  const std::string path = folder_ + "/hosts";
  std::ofstream(path) << "# all of them\n a slots=2\n\nb # the other\n";
  EXPECT_EQ(*ReadHosts(path), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadHosts("a,-oProxyCommand=x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadHosts(",").status()));
}

TEST(ReachTest, TellsWhoListensFromWhoRefuses) {
  EXPECT_EQ(*AddressTowards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(absl::IsNotFound(AddressTowards("no such host").status()));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto endpoint =
      *services::ParseEndpoint(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  EXPECT_EQ(TryToReach(endpoint, absl::Seconds(5)), Reach::kRefused);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(TryToReach(endpoint, absl::Seconds(5)), Reach::kThere);
  close(fd);
}

}  // namespace
}  // namespace capstan::client

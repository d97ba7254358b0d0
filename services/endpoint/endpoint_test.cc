#include "services/endpoint/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

using ::testing::HasSubstr;

TEST(EndpointTest, ReadsBothFormsAndWritesThemAgain) {
  for (const char* text :
       {"unix:/tmp/a/s", "unix:s", "unix:////a", "127.0.0.1:0", "node-a:7070", "[::1]:65535"}) {
    const auto endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->ToString(), text);
  }
  EXPECT_EQ(ParseEndpoint("unix:///tmp/s")->path, "/tmp/s");
  EXPECT_EQ(ParseEndpoint("[::1]:7")->host, "::1");
  EXPECT_EQ(ParseEndpoint("node-a:7070")->port, 7070);
}

TEST(EndpointTest, RefusesTheRestByName) {
  for (const char* text :
       {"", "unix:", "node-a", ":7070", "node-a:", "node-a:65536", "node-a:-1", "node-a:+1",
        "node-a: 1", "::1:7070", "[::1:7070", "a b:1", "[[a]:1", "[a]:1", "[a:1", "a]:1", "h\xff:1",
        "http://a:1", "node-a:99999999999"}) {
    const auto endpoint = ParseEndpoint(text);
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(endpoint.status().message()), HasSubstr(absl::StrCat("'", text, "'")));
  }
}

TEST(EndpointTest, LongestUnixPathIs107Bytes) {
  EXPECT_TRUE(ParseEndpoint(absl::StrCat("unix:", std::string(107, 'a'))).ok());
  EXPECT_THAT(
      std::string(ParseEndpoint(absl::StrCat("unix:", std::string(108, 'a'))).status().message()),
      HasSubstr("has 108 bytes, at most 107 are possible"));
}

TEST(EndpointTest, TcpNeedsCertificatesOrInsecureAndUnixNeither) {
  const Endpoint tcp = *ParseEndpoint("127.0.0.1:7070");
  const Endpoint local = *ParseEndpoint("unix:/tmp/s");
  Security tls{.tls_cert = "c", .tls_key = "k", .tls_ca = "a"};
  EXPECT_TRUE(CheckListenSecurity(local, {}).ok());
  EXPECT_TRUE(CheckListenSecurity(local, tls).ok());  // for the server's other addresses
  EXPECT_TRUE(CheckListenSecurity(tcp, {.insecure = true}).ok());
  EXPECT_TRUE(CheckListenSecurity(tcp, tls).ok());
  EXPECT_THAT(std::string(CheckListenSecurity(tcp, {}).message()),
              HasSubstr("127.0.0.1:7070: listening on TCP needs --tls-cert; `capstan certs init"));
  EXPECT_EQ(CheckConnectSecurity(tcp, {}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(CheckConnectSecurity(tcp, tls).message()),
              HasSubstr("connecting on TCP needs --token-file"));
  tls.insecure = true;
  EXPECT_EQ(CheckListenSecurity(tcp, tls).message(),
            "--insecure and --tls-cert exclude each other");
  EXPECT_THAT(
      std::string(CheckConnectSecurity(*ParseEndpoint("a:0"), {.insecure = true}).message()),
      HasSubstr("port 0"));
}

TEST(EndpointTest, SocketFolderMustBePrivate) {
  char folder[] = "/tmp/capstan-endpoint-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const Endpoint endpoint = *ParseEndpoint(absl::StrCat("unix:", folder, "/s"));
  EXPECT_TRUE(CheckSocketFolder(endpoint).ok());
  chmod(folder, 0750);
  EXPECT_THAT(std::string(CheckSocketFolder(endpoint).message()), HasSubstr("mode 0750, owner"));
  rmdir(folder);
  EXPECT_EQ(CheckSocketFolder(endpoint).code(), absl::StatusCode::kNotFound);
}

TEST(EndpointTest, ProbeTellsWhyAPortCannotBeBound) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const Endpoint taken = *ParseEndpoint(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  EXPECT_EQ(ProbeTcpBind(taken).message(),
            absl::StrCat("listen on ", taken.ToString(), ": Address already in use"));
  close(fd);
  EXPECT_TRUE(ProbeTcpBind(*ParseEndpoint("127.0.0.1:0")).ok());
}

TEST(EndpointTest, AnInterfaceGivesItsAddress) {
  EXPECT_EQ(*InterfaceAddress("lo"), "127.0.0.1");
  EXPECT_THAT(std::string(InterfaceAddress("none0").status().message()),
              HasSubstr("interface 'none0' does not exist; there are"));
}

TEST(EndpointTest, Loopback) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("node-a"));
}

}  // namespace
}  // namespace capstan::services

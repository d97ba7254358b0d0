#include "services/security/certificates.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

struct World {
  KeyPair authority = *MakeAuthority("test", kNow, absl::Hours(24));
  absl::StatusOr<KeyPair> Issue(Role role, const std::string& name,
                                const std::vector<std::string>& hosts,
                                absl::Duration lifetime = absl::Hours(1)) {
    return IssueCertificate(
        authority, {.identity = {role, name}, .hosts = hosts, .now = kNow, .lifetime = lifetime});
  }
};

TEST(CertificatesTest, ALeafCarriesRoleNameAndHosts) {
  World world;
  const KeyPair leaf = *world.Issue(Role::kParamStore, "node-b", {"node-b", "10.0.0.2", "::1"});
  EXPECT_EQ(*IdentityOf(leaf.certificate), (Identity{Role::kParamStore, "node-b"}));
  EXPECT_TRUE(CheckKeyPair(leaf, world.authority.certificate, kNow).ok());
  EXPECT_THAT(*HostsOf(leaf.certificate), ElementsAre("node-b", "10.0.0.2", "::1"));
  EXPECT_THAT(*HostsOf(world.authority.certificate), IsEmpty());
  EXPECT_FALSE(HostsOf("x").ok());
  EXPECT_EQ(ValidityOf(leaf.certificate)->from, kNow - absl::Minutes(1));
  EXPECT_EQ(ValidityOf(leaf.certificate)->until, kNow + absl::Hours(1));

  BIO* const bio = BIO_new_mem_buf(leaf.certificate.data(), -1);
  X509* const x509 = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  ASSERT_NE(x509, nullptr);
  EXPECT_EQ(X509_check_host(x509, "node-b", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(x509, "node-c", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_ip_asc(x509, "10.0.0.2", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(x509, "::1", 0), 1);
  EXPECT_EQ(X509_check_ca(x509), 0);  // it cannot sign others
  EXPECT_EQ(X509_get_extended_key_usage(x509), XKU_SSL_SERVER | XKU_SSL_CLIENT);
  X509_free(x509);
  BIO_free(bio);
}

TEST(CertificatesTest, AFileTellsWhenItsCertificatesEnd) {
  World world;
  const std::string& root = world.authority.certificate;
  const KeyPair leaf = *world.Issue(Role::kWorker, "a", {"a"});
  EXPECT_THAT(*EndsOf(leaf.certificate), ElementsAre(kNow + absl::Hours(1)));
  EXPECT_THAT(*EndsOf(leaf.certificate + root),
              ElementsAre(kNow + absl::Hours(1), kNow + absl::Hours(24)));
  EXPECT_EQ(EndsOf("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EndsOf(leaf.key).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CertificatesTest, WhatDoesNotFitIsRefusedWithAReason) {
  World world;
  World other;
  const std::string& root = world.authority.certificate;
  const KeyPair leaf = *world.Issue(Role::kWorker, "a", {"a"});
  const KeyPair second = *world.Issue(Role::kWorker, "a", {"a"});
  const auto why = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(why(CheckKeyPair({leaf.certificate, second.key}, root, kNow)),
              HasSubstr("the key is not the certificate's"));
  EXPECT_THAT(why(CheckKeyPair(leaf, other.authority.certificate, kNow)),
              HasSubstr("unable to get local issuer certificate"));
  EXPECT_THAT(why(CheckKeyPair(leaf, root, kNow + absl::Hours(2))),
              HasSubstr("certificate has expired"));
  EXPECT_THAT(why(CheckKeyPair(leaf, "", kNow)), HasSubstr("no authority's certificate"));
  EXPECT_THAT(why(CheckKeyPair({"x", leaf.key}, root, kNow)), HasSubstr("certificate:"));
  EXPECT_THAT(why(CheckKeyPair({leaf.certificate, "x"}, root, kNow)), HasSubstr("private key:"));
  EXPECT_THAT(why(IdentityOf(root).status()), HasSubstr("names no role"));
  // A leaf cannot sign.
  EXPECT_THAT(why(IssueCertificate(leaf, {.identity = {Role::kAdmin, "x"}, .now = kNow}).status()),
              HasSubstr("not that of an authority"));
}

TEST(CertificatesTest, NamesAndHostsCannotSmuggleExtensions) {
  World world;
  for (const char* host : {"", "a,DNS:b", "a\nDNS:b", "a b", "-a", ".a", "a..b", "a:7070", "[::1]",
                           "URI:capstan:role/admin", "*."}) {
    EXPECT_FALSE(world.Issue(Role::kWorker, "a", {host}).ok()) << host;
  }
  for (const char* name : {"", "A", "a/b", "a b", ".a", "a\n", "../x"}) {
    EXPECT_FALSE(world.Issue(Role::kWorker, name, {}).ok()) << name;
  }
  EXPECT_TRUE(world.Issue(Role::kWorker, "a", {"*.cluster.local"}).ok());
}

TEST(CertificatesTest, ALeafDoesNotOutliveItsAuthority) {
  World world;
  const KeyPair leaf = *world.Issue(Role::kClient, "a", {}, absl::Hours(1000));
  EXPECT_TRUE(CheckKeyPair(leaf, world.authority.certificate, kNow + absl::Hours(23)).ok());
  EXPECT_FALSE(CheckKeyPair(leaf, world.authority.certificate, kNow + absl::Hours(25)).ok());
}

TEST(RoleTest, UrisAreReadAsWritten) {
  for (const Role role :
       {Role::kClient, Role::kAdmin, Role::kWorker, Role::kParamStore, Role::kCoordinator}) {
    EXPECT_EQ(*ParseRoleUri(RoleUri(role)), role);
  }
  EXPECT_FALSE(ParseRoleUri("capstan:role/root").ok());
  EXPECT_FALSE(ParseRoleUri("spiffe://capstan:role/admin").ok());
}

TEST(RoleTest, ACertificateHasTheNodesOfItsName) {
  const auto claim = [](const std::string& name, const std::string& node) {
    return ClaimOf({Role::kWorker, name}, node);
  };
  for (const std::string name :
       {"gpu-1", "gpu_1", "gpu-1.example.com", "gpu_1.10.example", "gpu-1."}) {
    EXPECT_EQ(claim(name, "gpu-1"), NodeClaim::kNamed) << name;
    EXPECT_EQ(claim(name, "gpu-1-shard"), NodeClaim::kNamed) << name;
    for (const std::string other : {"gpu-11", "gpu", "gpu-2", "a-gpu-1", "gpu-1.x", ""}) {
      EXPECT_EQ(claim(name, other), NodeClaim::kAnother) << name << " " << other;
    }
  }
  for (const std::string name : {"10.0.0.1", "127.0.0.1", "localhost", "worker"}) {
    EXPECT_EQ(claim(name, "w0"), NodeClaim::kNameless) << name;
  }
  EXPECT_EQ(claim("param_store", "w0"), NodeClaim::kAnother);  // a worker has that name
  EXPECT_EQ(ClaimOf({Role::kParamStore, "param_store"}, "s0"), NodeClaim::kNameless);
  EXPECT_EQ(claim("7", "w0"), NodeClaim::kAnother);
}

}  // namespace
}  // namespace capstan::services

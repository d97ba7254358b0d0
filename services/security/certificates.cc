#include "services/security/certificates.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::services {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

// The newest error of OpenSSL in this thread. Clears all errors.
absl::Status OpenSslError(absl::string_view what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", reason == nullptr ? "cannot be done" : reason));
}

Bio Reader(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string Written(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// A key that asks for a password is refused instead of asking on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Certificate> ReadCertificate(absl::string_view pem) {
  Certificate certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassword, nullptr));
  if (certificate == nullptr) return OpenSslError("certificate");
  return certificate;
}

absl::StatusOr<Key> ReadKey(absl::string_view pem) {
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return OpenSslError("private key");
  return key;
}

absl::StatusOr<KeyPair> ToPem(X509* certificate, EVP_PKEY* key) {
  const Bio certificate_out(BIO_new(BIO_s_mem()));
  const Bio key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_out.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return OpenSslError("write PEM");
  }
  return KeyPair{Written(certificate_out.get()), Written(key_out.get())};
}

// Makes a certificate with version, random serial number, the subject's common name, times and
// public key.
absl::StatusOr<Certificate> Begin(absl::string_view name, EVP_PKEY* key, absl::Time from,
                                  absl::Time until) {
  Certificate out(X509_new());
  unsigned char serial[16];
  if (out == nullptr || RAND_bytes(serial, sizeof(serial)) != 1) return OpenSslError("certificate");
  serial[0] &= 0x7f;  // positive
  serial[0] |= 0x40;  // and 16 bytes long
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(BN_bin2bn(serial, sizeof(serial), nullptr));
  const std::string common_name(name);
  if (number == nullptr || X509_set_version(out.get(), X509_VERSION_3) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(out.get())) == nullptr ||
      X509_NAME_add_entry_by_txt(X509_get_subject_name(out.get()), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1,
                                 -1, 0) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(out.get()), absl::ToTimeT(from)) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(out.get()), absl::ToTimeT(until)) == nullptr ||
      X509_set_pubkey(out.get(), key) != 1) {
    return OpenSslError("certificate");
  }
  return out;
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpenSslError(absl::StrCat("extension ", value));
  }
  return absl::OkStatus();
}

// "DNS:node-a" or "IP:10.0.0.1". The text becomes part of OpenSSL's list syntax, so only characters
// of names and addresses are allowed.
absl::StatusOr<std::string> HostEntry(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), address) == 1 ||
      inet_pton(AF_INET6, host.c_str(), address) == 1) {
    return absl::StrCat("IP:", host);
  }
  bool good = !host.empty() && host.size() <= 253 && host[0] != '-' && host[0] != '.' &&
              !absl::StrContains(host, "..");
  const std::string rest = absl::StartsWith(host, "*.") ? host.substr(2) : host;
  for (const char c : rest) good = good && (absl::ascii_isalnum(c) || c == '-' || c == '.');
  if (good && !rest.empty()) return absl::StrCat("DNS:", host);
  return absl::InvalidArgumentError(
      absl::StrCat("host '", host, "': want a name, or an IP address without brackets or port"));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<KeyPair> MakeAuthority(absl::string_view name, absl::Time now,
                                      absl::Duration lifetime) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a P-256 key");
  absl::StatusOr<Certificate> certificate =
      Begin(name, key.get(), now - absl::Minutes(1), now + lifetime);
  if (!certificate.ok()) return certificate.status();
  X509* const x509 = certificate->get();
  if (X509_set_issuer_name(x509, X509_get_subject_name(x509)) != 1) return OpenSslError("issuer");
  const std::pair<int, const char*> extensions[] = {
      {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
      {NID_key_usage, "critical,keyCertSign,cRLSign"},
      {NID_subject_key_identifier, "hash"}};
  for (const auto& [nid, value] : extensions) {
    if (absl::Status status = AddExtension(x509, x509, nid, value); !status.ok()) return status;
  }
  if (X509_sign(x509, key.get(), EVP_sha256()) == 0) return OpenSslError("sign");
  return ToPem(x509, key.get());
}

absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority, const LeafOptions& options) {
  if (absl::Status status = CheckIdentityName(options.identity.name); !status.ok()) return status;
  const absl::StatusOr<Certificate> issuer = ReadCertificate(authority.certificate);
  if (!issuer.ok()) return issuer.status();
  const absl::StatusOr<Key> issuer_key = ReadKey(authority.key);
  if (!issuer_key.ok()) return issuer_key.status();
  if (X509_check_private_key(issuer->get(), issuer_key->get()) != 1) {
    return OpenSslError("the authority's key is not its certificate's");
  }
  if (X509_check_ca(issuer->get()) != 1) {
    return absl::InvalidArgumentError("the authority's certificate is not that of an authority");
  }
  std::vector<std::string> names = {absl::StrCat("URI:", RoleUri(options.identity.role))};
  for (const std::string& host : options.hosts) {
    absl::StatusOr<std::string> entry = HostEntry(host);
    if (!entry.ok()) return entry.status();
    names.push_back(*std::move(entry));
  }
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a P-256 key");
  const absl::Time until =
      std::min(options.now + options.lifetime, ToTime(X509_get0_notAfter(issuer->get())));
  absl::StatusOr<Certificate> certificate =
      Begin(options.identity.name, key.get(), options.now - absl::Minutes(1), until);
  if (!certificate.ok()) return certificate.status();
  X509* const x509 = certificate->get();
  if (X509_set_issuer_name(x509, X509_get_subject_name(issuer->get())) != 1) {
    return OpenSslError("issuer");
  }
  const std::pair<int, std::string> extensions[] = {
      {NID_basic_constraints, "critical,CA:FALSE"},
      {NID_key_usage, "critical,digitalSignature"},
      {NID_ext_key_usage, "serverAuth,clientAuth"},
      {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid"},
      {NID_subject_alt_name, absl::StrJoin(names, ",")}};
  for (const auto& [nid, value] : extensions) {
    if (absl::Status status = AddExtension(x509, issuer->get(), nid, value); !status.ok()) {
      return status;
    }
  }
  if (X509_sign(x509, issuer_key->get(), EVP_sha256()) == 0) return OpenSslError("sign");
  return ToPem(x509, key.get());
}

absl::StatusOr<Identity> IdentityOf(absl::string_view certificate) {
  const absl::StatusOr<Certificate> x509 = ReadCertificate(certificate);
  if (!x509.ok()) return x509.status();
  char name[256] = {};
  const int size = X509_NAME_get_text_by_NID(X509_get_subject_name(x509->get()), NID_commonName,
                                             name, sizeof(name));
  if (size <= 0 || std::strlen(name) != static_cast<size_t>(size)) {  // no zero byte inside
    return absl::InvalidArgumentError("the certificate has no common name");
  }
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(x509->get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const entry = sk_GENERAL_NAME_value(names.get(), i);
    if (entry->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = entry->d.uniformResourceIdentifier;
    const absl::StatusOr<Role> role =
        ParseRoleUri({reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri))});
    if (role.ok()) return Identity{*role, name};
  }
  return absl::InvalidArgumentError("the certificate names no role of Capstan");
}

absl::StatusOr<std::vector<std::string>> HostsOf(absl::string_view certificate) {
  const absl::StatusOr<Certificate> x509 = ReadCertificate(certificate);
  if (!x509.ok()) return x509.status();
  std::vector<std::string> hosts;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(x509->get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const entry = sk_GENERAL_NAME_value(names.get(), i);
    if (entry->type == GEN_DNS) {
      const ASN1_IA5STRING* const name = entry->d.dNSName;
      hosts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
                         static_cast<size_t>(ASN1_STRING_length(name)));
    } else if (entry->type == GEN_IPADD) {
      const ASN1_OCTET_STRING* const address = entry->d.iPAddress;
      char text[INET6_ADDRSTRLEN] = {};
      const int family = ASN1_STRING_length(address) == sizeof(in_addr) ? AF_INET : AF_INET6;
      const bool whole = family == AF_INET || ASN1_STRING_length(address) == sizeof(in6_addr);
      if (whole && inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof(text)) != nullptr)
        hosts.emplace_back(text);
    }
  }
  return hosts;
}

absl::StatusOr<Validity> ValidityOf(absl::string_view certificate) {
  const absl::StatusOr<Certificate> x509 = ReadCertificate(certificate);
  if (!x509.ok()) return x509.status();
  return Validity{ToTime(X509_get0_notBefore(x509->get())),
                  ToTime(X509_get0_notAfter(x509->get()))};
}

absl::StatusOr<std::vector<absl::Time>> EndsOf(absl::string_view certificates) {
  std::vector<absl::Time> ends;
  const Bio reader = Reader(certificates);
  while (true) {
    const Certificate next(PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr));
    if (next == nullptr) break;
    ends.push_back(ToTime(X509_get0_notAfter(next.get())));
  }
  if (ends.empty()) return OpenSslError("certificate");
  ERR_clear_error();  // the end of the file is an error, too
  return ends;
}

absl::Status CheckKeyPair(const KeyPair& pair, absl::string_view authorities, absl::Time now) {
  const absl::StatusOr<Certificate> certificate = ReadCertificate(pair.certificate);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<Key> key = ReadKey(pair.key);
  if (!key.ok()) return key.status();
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    return OpenSslError("the key is not the certificate's");
  }
  const Store store(X509_STORE_new());
  const Bio reader = Reader(authorities);
  int count = 0;
  while (true) {
    const Certificate authority(PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr));
    if (authority == nullptr) break;
    X509_STORE_add_cert(store.get(), authority.get());
    ++count;
  }
  ERR_clear_error();  // the end of the file is an error, too
  if (count == 0) return absl::InvalidArgumentError("there is no authority's certificate");
  const StoreContext context(X509_STORE_CTX_new());
  if (context == nullptr ||
      X509_STORE_CTX_init(context.get(), store.get(), certificate->get(), nullptr) != 1) {
    return OpenSslError("check the certificate");
  }
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate is refused: ", X509_verify_cert_error_string(error)));
  }
  return absl::OkStatus();
}

}  // namespace capstan::services

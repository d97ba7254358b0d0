// The guard in front of OpenSSL's SSL_read. libgrpc calls SSL_read by its name, and a definition in
// the program takes precedence over one in a shared library, as with malloc.
#include <dlfcn.h>
#include <openssl/ssl.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/server/http2_guard.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

using SslRead = int (*)(SSL*, void*, int);

SslRead RealRead() {
  static const auto real = reinterpret_cast<SslRead>(::dlsym(RTLD_NEXT, "SSL_read"));
  CAPSTAN_CHECK(real != nullptr);
  return real;
}

// gRPC reads a connection from one thread at a time. Its locks are invisible to ThreadSanitizer.
struct Watched {
  Mutex mu;
  Http2Guard guard ABSL_GUARDED_BY(mu);
};

void FreeWatched(void*, void* data, CRYPTO_EX_DATA*, int, long, void*) {  // NOLINT: OpenSSL's type
  auto* const watched = static_cast<Watched*>(data);
  if (watched == nullptr) return;
  { MutexLock lock(watched->mu); }  // wait for the last read
  delete watched;
}

int GuardIndex() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeWatched);
  return index;
}

// False: the connection must end.
bool Watch(SSL* ssl, absl::string_view bytes) {
  auto* watched = static_cast<Watched*>(SSL_get_ex_data(ssl, GuardIndex()));
  if (watched == nullptr) {
    auto made = std::make_unique<Watched>();
    watched = made.get();
    if (SSL_set_ex_data(ssl, GuardIndex(), watched) != 1) return false;
    (void)made.release();  // FreeWatched owns it
  }
  const char* why = "";
  {
    MutexLock lock(watched->mu);
    const bool ended = *watched->guard.why() != '\0';
    if (watched->guard.Take(bytes, MonotonicNow())) return true;
    if (ended) return false;
    why = watched->guard.why();
  }
  Log(kWarning, "http2_flood").Limit("all", absl::Seconds(1)).Kv("why", why);
  return false;
}

}  // namespace

void InstallHttp2Guard() {
  RealRead();
  GuardIndex();
}

}  // namespace capstan::services

extern "C" __attribute__((visibility("default"))) int SSL_read(SSL* ssl, void* buffer, int size) {
  const int got = capstan::services::RealRead()(ssl, buffer, size);
  if (got <= 0 || SSL_is_server(ssl) == 0) return got;
  const absl::string_view bytes(static_cast<const char*>(buffer), static_cast<size_t>(got));
  return capstan::services::Watch(ssl, bytes) ? got : -1;
}

// GET on loopback, for tests of services: one request in plain text; returns the whole raw answer.
#ifndef CAPSTAN_TESTS_SUPPORT_HTTP_GET_H_
#define CAPSTAN_TESTS_SUPPORT_HTTP_GET_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace capstan::tests {

// `addresses`: the line that a service prints, "grpc=... http=ADDR:PORT". `token`: "" sends none.
// Returns "" if there is no answer.
inline std::string HttpGet(const std::string& addresses, const std::string& path,
                           const std::string& token = "") {
  int port = 0;
  if (!absl::SimpleAtoi(addresses.substr(addresses.rfind(':') + 1), &port)) return "";
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {.tv_sec = 30, .tv_usec = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const std::string shown =
      token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n");
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n", shown, "\r\n");
  std::string text;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char piece[4096];
    for (ssize_t got = 0; (got = ::recv(fd, piece, sizeof(piece), 0)) > 0;) {
      text.append(piece, static_cast<size_t>(got));
    }
  }
  ::close(fd);
  return text;
}

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_HTTP_GET_H_

// `capstan doctor`.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/text/doctor_text.h"
#include "services/clock/clock.h"
#include "services/clock/clock_reading.h"
#include "services/security/handshake.h"
#include "services/timestamp/timestamp.h"
#include "services/version/version.h"

namespace capstan::client {
namespace {

// The command is silent for at most 7 s. The coordinator itself answers within 3 s
// (coordinator/diagnosis.h).
constexpr absl::Duration kConnectTimeout = absl::Milliseconds(2500);
constexpr absl::Duration kReachTimeout = absl::Seconds(1);
constexpr absl::Duration kDiagnoseTimeout = absl::Milliseconds(4500);

// Why the coordinator does not answer, and what to do.
std::string WhyUnreachable(const Connection& connection) {
  const services::Endpoint& peer = connection.address;
  const std::string address = peer.ToString();
  const services::Handshake met = services::TryHandshake(
      {.peer = peer, .security = connection.security, .timeout = kReachTimeout});
  switch (met.met) {
    case services::Met::kAnswers:
      return absl::StrCat(address,
                          " accepts the connection, but answers no call. Is this the coordinator's "
                          "gRPC port? Is its process stopped (SIGSTOP)?");
    case services::Met::kUnfit:
      return absl::StrCat("cannot speak with ", address, ": ", met.why);
    case services::Met::kAbsent:
      return absl::StrCat("no coordinator answers at ", address, ": ", met.why,
                          ". Does capstan_coordinator run, and is this its --listen address?");
    case services::Met::kSilent:
      break;
  }
  if (peer.is_unix()) return absl::StrCat(address, ": ", met.why);
  return absl::StrCat("no answer comes from ", address, " (", met.why,
                      "). Is that host up, and is it the right one? Open TCP port ", peer.port,
                      " on it for this host (packet filter, security group, route)");
}

ExitCode Doctor(const Context& context) {
  const Console& console = context.console;
  const absl::Duration begun = MonotonicNow();
  const absl::StatusOr<Connection> connection = FindCoordinator(context);
  if (!connection.ok()) return Report(connection.status(), console);
  if (const ExitCode code = NeedCoordinator(*connection, console); code != kExitDone) return code;
  Connection limited = *connection;
  limited.timeout = std::min(limited.timeout, kDiagnoseTimeout);
  auto client = JobClient::Connect(limited);
  if (!client.ok()) {
    Report(client.status(), console);
    return kExitUsage;  // contradicting flags: nothing was sent
  }
  CoordinatorLook look;
  look.address = limited.address.ToString();
  look.client_version = std::string(Version());
  const auto seconds = [begun] { return absl::ToDoubleSeconds(MonotonicNow() - begun); };
  Connection brief = limited;
  brief.timeout = std::min(kConnectTimeout, limited.timeout);
  if (!(*client)->AwaitConnection(brief).ok()) {
    const std::vector<Finding> findings = {
        {true, "CoordinatorUnreachable", "coordinator", WhyUnreachable(limited)}};
    console.Out(console.json() ? DoctorJson(nullptr, look, findings, seconds()) + "\n"
                               : FindingsText(findings));
    return kExitUnreachable;
  }
  const absl::Time sent = absl::Now();
  const auto cluster = (*client)->Call(&JobClient::AdminStub::Diagnose, job::v1::DiagnoseRequest());
  const absl::Time received = absl::Now();
  if (!cluster.ok()) return Report(cluster.status(), console);
  const ClockReading clock =
      ReadClock(sent, TimeOf(cluster->asked_at()), TimeOf(cluster->answered_at()), received);
  look.round_trip_seconds = clock.round_trip_seconds;
  look.ahead_seconds = clock.ahead_seconds;
  const std::vector<Finding> findings = FindingsOf(*cluster, look);
  console.Out(console.json()
                  ? DoctorJson(&*cluster, look, findings, seconds()) + "\n"
                  : DoctorText(*cluster, look, findings, console.stdout_tty ? console.width : 0));
  return AnyProblem(findings) ? kExitFound : kExitDone;
}

}  // namespace

void AddDoctor(Command parent, Action& slot) {
  Command doctor = parent.Sub(
      "doctor",
      "find out who reaches whom, how fast, and what hosts lack; exit code 5: found a fault");
  CarryOut(doctor, slot, {Output::kTable, Output::kJson}, Doctor);
}

}  // namespace capstan::client

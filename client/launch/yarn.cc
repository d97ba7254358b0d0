// Written from Hadoop 3's "ResourceManager REST API's" and the source of its distributed shell. It
// has never run against a real cluster.
#include <httplib.h>
#include <pwd.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/launch/launchers.h"
#include "client/launch/scheduler.h"

namespace capstan::client {
namespace {

using Json = nlohmann::json;

constexpr time_t kCallSeconds = 10;
constexpr char kApplications[] = "/ws/v1/cluster/apps";

// The text of a field; "" if `json` is no object or has no such text.
std::string Text(const Json& json, const char* key) {
  if (!json.is_object()) return "";
  const auto field = json.find(key);
  return field == json.end() || !field->is_string() ? "" : field->get<std::string>();
}

class Yarn : public Scheduler {
 public:
  Yarn(std::string url, std::vector<std::string> args)
      : url_(std::move(url)), args_(std::move(args)), http_(url_.c_str()) {
    http_.set_connection_timeout(kCallSeconds);
    http_.set_read_timeout(kCallSeconds);
    // A cluster without Kerberos knows people by this name.
    const passwd* const user = getpwuid(geteuid());
    user_ = absl::StrCat("?user.name=", user == nullptr ? absl::StrCat(geteuid()) : user->pw_name);
  }

  absl::StatusOr<std::string> Submit(const std::string& script, int ranks) override {
    Json said;
    absl::Status status =
        Answer("POST new-application",
               http_.Post(Path("/new-application").c_str(), std::string(), kJson), 200, said);
    if (!status.ok()) return status;
    const std::string id = Text(said, "application-id");
    // The id becomes part of a path.
    if (id.empty() || id.find_first_of("/?#%& ") != std::string::npos) {
      return absl::InternalError(absl::StrCat(url_, ": new-application has no application-id"));
    }
    const std::string body = YarnApplication(id, script, ranks, args_);
    status = Answer("POST apps", http_.Post(Path("").c_str(), body, kJson), 202, said);
    if (!status.ok()) return status;
    id_ = id;
    return id;
  }

  absl::string_view TaskVariable() const override { return "YARN_SHELL_ID"; }

  absl::Status Look() override {
    Json said;
    const absl::Status status =
        Answer("GET app", http_.Get(Path(absl::StrCat("/", id_)).c_str()), 200, said);
    if (!status.ok() || !said.is_object() || !said.contains("app")) return absl::OkStatus();
    const Json& app = said["app"];
    const std::string state = Text(app, "state");
    if (state != "FINISHED" && state != "FAILED" && state != "KILLED") return absl::OkStatus();
    const std::string why = Text(app, "diagnostics");
    return absl::AbortedError(
        absl::StrCat("the application is ", state, why.empty() ? "" : ": ", why));
  }

  void Delete() override {
    if (id_.empty()) return;
    (void)http_.Put(Path(absl::StrCat("/", id_, "/state")).c_str(),
                    std::string(R"({"state":"KILLED"})"), kJson);
  }

 private:
  static constexpr char kJson[] = "application/json";

  std::string Path(absl::string_view rest) const {
    return absl::StrCat(kApplications, rest, user_);
  }

  // `body` is the body of the answer, which must have the status `want`; null if it is not JSON.
  absl::Status Answer(absl::string_view call, const httplib::Result& result, int want,
                      Json& body) const {
    if (!result) {
      return absl::UnavailableError(
          absl::StrCat(url_, ": ", call, ": ", httplib::to_string(result.error())));
    }
    if (result->status != want) {
      return absl::InternalError(absl::StrCat(url_, ": ", call, ": HTTP status ", result->status,
                                              ", want ", want, ": ", result->body.substr(0, 500)));
    }
    body = Json::parse(result->body, nullptr, /*allow_exceptions=*/false);
    if (body.is_discarded()) body = nullptr;
    return absl::OkStatus();
  }

  const std::string url_;
  const std::vector<std::string> args_;
  std::string user_;
  std::string id_;
  httplib::Client http_;
};

}  // namespace

absl::StatusOr<services::Endpoint> ResourceManagerEndpoint(const std::string& url) {
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "http://")) {
    absl::StatusOr<services::Endpoint> endpoint =
        services::ParseEndpoint(absl::StripSuffix(rest, "/"));
    if (endpoint.ok() && !endpoint->is_unix()) return endpoint;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--resource-manager: got '", url, "', want http://HOST:PORT"));
}

absl::StatusOr<std::unique_ptr<Scheduler>> MakeYarn(const std::string& resource_manager,
                                                    std::vector<std::string> args) {
  const absl::StatusOr<services::Endpoint> endpoint = ResourceManagerEndpoint(resource_manager);
  if (!endpoint.ok()) return endpoint.status();
  return std::make_unique<Yarn>(absl::StrCat("http://", endpoint->ToString()), std::move(args));
}

std::string YarnApplication(const std::string& id, const std::string& script, int ranks,
                            const std::vector<std::string>& args) {
  // The ApplicationMaster reads the command of its containers from this file in its folder.
  // Hadoop's own client would put it there through HDFS.
  std::string command =
      absl::StrCat("printf %s ", ShellQuote(absl::StrCat("/bin/sh ", ShellQuote(script))),
                   " >shellCommands && exec {{JAVA_HOME}}/bin/java -Xmx256m "
                   "org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster");
  // If a flag is given twice, the first one counts.
  for (const std::string& arg : args) absl::StrAppend(&command, " ", ShellQuote(arg));
  absl::StrAppend(&command, " --container_memory 2048 --container_vcores 1 --priority 0",
                  " --num_containers ", ranks,
                  " 1><LOG_DIR>/AppMaster.stdout 2><LOG_DIR>/AppMaster.stderr");
  constexpr char kClassPath[] =
      "{{CLASSPATH}}<CPS>./*<CPS>{{HADOOP_CONF_DIR}}"
      "<CPS>{{HADOOP_COMMON_HOME}}/share/hadoop/common/*"
      "<CPS>{{HADOOP_COMMON_HOME}}/share/hadoop/common/lib/*"
      "<CPS>{{HADOOP_HDFS_HOME}}/share/hadoop/hdfs/*"
      "<CPS>{{HADOOP_HDFS_HOME}}/share/hadoop/hdfs/lib/*"
      "<CPS>{{HADOOP_YARN_HOME}}/share/hadoop/yarn/*"
      "<CPS>{{HADOOP_YARN_HOME}}/share/hadoop/yarn/lib/*";
  return Json({{"application-id", id},
               {"application-name", "capstan"},
               {"application-type", "YARN"},
               {"max-app-attempts", 1},
               {"resource", {{"memory", 512}, {"vCores", 1}}},
               {"am-container-spec",
                {{"commands", {{"command", command}}},
                 {"environment",
                  {{"entry", Json::array({{{"key", "CLASSPATH"}, {"value", kClassPath}}})}}}}}})
      .dump();
}

}  // namespace capstan::client

// The sub-commands, one source file per subject. Each function adds its commands to `parent` (the
// program, or `capstan job`) and leaves what is to be done in `slot`; see command.h.
#ifndef CAPSTAN_CLIENT_COMMANDS_H_
#define CAPSTAN_CLIENT_COMMANDS_H_

#include <CLI/CLI.hpp>

#include "client/command.h"
#include "client/job_source.h"

namespace capstan::client {

// FILE, --example NAME and --set KEY=VALUE.
void AddJobSource(CLI::App& command, JobSource& source);

void AddRun(CLI::App& parent, Action& slot);         // run, clean
void AddValidate(CLI::App& parent, Action& slot);    // validate
void AddData(CLI::App& parent, Action& slot);        // data get
void AddCerts(CLI::App& parent, Action& slot);       // certs init, certs issue
void AddSubmit(CLI::App& parent, Action& slot);      // submit
void AddList(CLI::App& parent, Action& slot);        // list
void AddDescribe(CLI::App& parent, Action& slot);    // describe
void AddWatch(CLI::App& parent, Action& slot);       // watch, wait
void AddLogs(CLI::App& parent, Action& slot);        // logs
void AddMetrics(CLI::App& parent, Action& slot);     // metrics
void AddEvents(CLI::App& parent, Action& slot);      // events
void AddControl(CLI::App& parent, Action& slot);     // cancel, suspend, resume, retry, update
void AddVerify(CLI::App& parent, Action& slot);      // verify
void AddCheckpoint(CLI::App& parent, Action& slot);  // checkpoint list, describe, verify
void AddAdmin(CLI::App& parent, Action& slot);       // node, healthcheck, log-level
void AddDoctor(CLI::App& parent, Action& slot);      // doctor
void AddTop(CLI::App& parent, Action& slot);         // top, shards

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_H_

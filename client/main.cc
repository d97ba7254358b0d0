// capstan: submits, runs and watches training jobs.
#include "client/app.h"

int main(int argc, char** argv) { return capstan::client::Main(argc, argv); }

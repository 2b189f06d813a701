// Command natsserver is a NATS server with JetStream, for tests. It reads the configuration file of
// nats-server:
//
//	natsserver -c FILE
//
// It is a separate module, so that no other module depends on the server.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	file := flag.String("c", "", "configuration `FILE` of nats-server")
	flag.Parse()
	if err := run(*file); err != nil {
		fmt.Fprintln(os.Stderr, "natsserver:", err)
		os.Exit(1)
	}
}

// run serves until SIGINT or SIGTERM, which the server handles itself.
func run(file string) error {
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		return err
	}

	broker, err := server.NewServer(opts)
	if err != nil {
		return err
	}

	broker.ConfigureLogger()
	broker.Start()
	broker.WaitForShutdown()

	return nil
}

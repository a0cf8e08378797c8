package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/client"
)

// asBeater makes this test binary a command that writes to the given file every few milliseconds with which token it runs,
// and that does not obey TERM.
const asBeater = "PAWL_TEST_AS_BEATER"

// beatFor, in the environment, has the command end by itself.
const beatFor = "PAWL_TEST_BEAT_FOR"

func beat(path string) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	signal.Ignore(syscall.SIGTERM)
	length, _ := time.ParseDuration(os.Getenv(beatFor))
	for began := time.Now(); length == 0 || time.Since(began) < length; time.Sleep(2 * time.Millisecond) {
		fmt.Fprintf(file, "%d %s\n", client.Now(), os.Getenv("PAWL_TOKEN"))
	}
}

package lifecyclemanager_test

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/controlplane/lifecyclemanager"
)

// The steps themselves are tested in examples/migration, against API servers.
func TestOptions(t *testing.T) {
	for want, opts := range map[string]lifecyclemanager.Options{
		"Step is 0, want 2 to 8":                   {},
		"Step is 9, want 2 to 8":                   {Step: 9, Address: "gateway.example.com:443", Image: "agent"},
		`Address is "", want <host>:<port>`:        {Step: 4},
		`Address is ":443", want <host>:<port>`:    {Step: 4, Address: ":443"},
		"Image is empty, want that of the agent":   {Step: 5, Address: "gateway.example.com:443"},
		`Address is "gateway", want <host>:<port>`: {Step: 8, Address: "gateway", Image: "agent"},
	} {
		if _, err := lifecyclemanager.SetUp(nil, ":8082", opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", opts, err, want)
		}
	}
}

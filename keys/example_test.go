package keys_test

import (
	"fmt"
	"net/http"
	"os"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// Files reads a mounted secret, follows it in Start, and serves both ends.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "tls")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	ca := must(testpki.NewCA("runtime-watcher", testpki.Options{}))
	volume := testpki.NewVolume(dir)

	if err := volume.Write(testpki.Files(must(ca.Server("kcp", testpki.Options{})), ca)); err != nil {
		panic(err)
	}

	caPath, cert, key := volume.Paths()

	files, err := keys.NewFiles(keys.Paths{CA: caPath, Certificate: cert, Key: key}, keys.FilesOptions{})
	if err != nil {
		panic(err)
	}

	// Run files.Start(ctx) beside the server, so that it follows the files.
	server := &http.Server{TLSConfig: keys.ServerTLSConfig(files)}
	fmt.Println("protocols:", server.TLSConfig.NextProtos)

	if err := volume.Write(map[string][]byte{"ca.crt": []byte("half written")}); err != nil {
		panic(err)
	}

	fmt.Println("reload failed:", files.Reload() != nil, "still in use:", files.Status().Material.Certificate != nil)
	// Output:
	// protocols: [h2 http/1.1]
	// reload failed: true still in use: true
}

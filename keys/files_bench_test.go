package keys_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// BenchmarkFilesReload measures one poll of the three files of a secret volume.
func BenchmarkFilesReload(b *testing.B) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	volume := testpki.NewVolume(b.TempDir())
	write := func() {
		if err := volume.Write(testpki.Files(must(ca.Client(runtime1, testpki.Options{})), ca)); err != nil {
			b.Fatal(err)
		}
	}
	write()
	caPath, cert, key := volume.Paths()
	files := must(keys.NewFiles(keys.Paths{CA: caPath, Certificate: cert, Key: key}, keys.FilesOptions{}))
	reload := func() {
		if err := files.Reload(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("unchanged", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			reload()
		}
	})
	b.Run("changed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			write()
			b.StartTimer()
			reload()
		}
	})
}

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestSlowRuntime installs 300 objects in a runtime with an API server that takes 100 ms for each
// answer. One visit is too short for that, so each must continue where the last one ended.
func TestSlowRuntime(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const objects = 300
		slow := newCluster(b.T, "runtime-1")
		slow.takes = 100 * time.Millisecond
		b.publish("many", "1", objects)
		b.register(slow, v1beta2.Module{Name: "many"})

		applied := 0
		ended := make(map[string]bool)
		took := b.within(3*time.Minute, "all objects are installed", func() bool {
			list := &corev1.ConfigMapList{}
			rig.NoError(b.T, slow.List(b.Context(), list, client.InNamespace("default")))
			if len(list.Items) < applied {
				b.Fatalf("%d objects, there were %d", len(list.Items), applied)
			}
			applied = len(list.Items)
			if modules := b.kyma(slow.name).Status.Modules; len(modules) > 0 {
				ended[modules[0].Message] = true
			}
			return applied == objects && b.isReady(slow.name, "1")()
		})
		b.Logf("installed after %s", took)

		progress := regexp.MustCompile(`^(\d+) of 300 objects are applied$`)
		most := 0
		for message := range ended {
			if found := progress.FindStringSubmatch(message); found != nil {
				most = max(most, rig.Must(strconv.Atoi(found[1])))
			}
		}
		if most == 0 {
			b.Errorf("no visit has ended early, so nothing continues: %v", ended)
		}
	})
}

// TestSilentRuntimes has ten runtimes that fall silent: their API servers accept requests and never
// answer. That is as many as each controller has workers. The only other runtime gets each version
// of its module nevertheless.
func TestSilentRuntimes(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const module = "shared"
		const silent, honest = 10, "honest"
		b.publish(module, "1", 1)
		names := []string{honest}
		for i := range silent {
			names = append(names, fmt.Sprint("silent-", i))
		}
		for _, name := range names {
			b.register(newCluster(b.T, name), v1beta2.Module{Name: module})
		}
		for _, name := range names {
			b.within(time.Minute, name+" is ready", b.isReady(name, "1"))
		}

		for _, name := range names[1:] {
			b.runtimes[name].silent.Store(true)
		}
		// At first, each silent runtime may take a worker for 3 s in each controller.
		b.publish(module, "2", 1)
		took := b.within(7*time.Second, "the first change", b.isReady(honest, "2"))
		b.Logf("the first change is there after %s", took)
		time.Sleep(2 * time.Minute) // Both controllers have tried the silent ones.
		for i := range 10 {
			version := v1beta2.Version(strconv.Itoa(3 + i))
			b.publish(module, version, 1)
			b.within(time.Second, "version "+string(version), b.isReady(honest, version))
			time.Sleep(10 * time.Second)
		}

		for _, name := range names[1:] {
			b.runtimes[name].silent.Store(false)
		}
		for _, name := range names {
			b.within(3*time.Minute, name+" is ready again", b.isReady(name, "12"))
		}
	})
}

// TestManyRuntimes registers 50 runtimes in parallel. The kubeconfigs of four of them lead to one API
// server: one Kyma gets that cluster, and the others name it. When it is deleted, another one gets
// the cluster.
func TestManyRuntimes(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const module = "shared"
		b.publish(module, "1", 1)
		common := newCluster(b.T, "common")
		var honest, same []string
		for i := range 50 {
			name := fmt.Sprint("runtime-", i)
			there := common
			if i < 46 {
				honest = append(honest, name)
				there = newCluster(b.T, name)
			} else {
				same = append(same, name)
			}
			b.registerAs(name, there, v1beta2.Module{Name: module})
		}
		for _, name := range honest {
			b.within(time.Minute, name+" is ready", b.isReady(name, "1"))
		}

		for len(same) > 0 {
			var first string
			b.within(2*time.Minute, "one Kyma has the cluster", func() bool {
				first = b.owner(same, common)
				return first != "" && b.isReady(first, "1")()
			})
			others := slices.DeleteFunc(slices.Clone(same), func(name string) bool { return name == first })
			b.within(2*time.Minute, "the others name "+first, func() bool {
				return !slices.ContainsFunc(others, func(name string) bool {
					status := b.kyma(name).Status
					return status.State != v1beta2.Error || !strings.Contains(status.Message, "which Kyma "+first+" has")
				})
			})
			rig.NoError(b.T, b.plane.Delete(b.Context(), b.kyma(first)))
			b.within(2*time.Minute, first+" is gone", func() bool {
				key := client.ObjectKey{Namespace: "kcp-system", Name: first}
				return apierrors.IsNotFound(b.plane.Get(b.Context(), key, &v1beta2.Kyma{}))
			})
			same = others
		}
		b.within(time.Minute, "the module is gone", func() bool {
			list := &corev1.ConfigMapList{}
			rig.NoError(b.T, common.List(b.Context(), list))
			return len(list.Items) == 0
		})
		for _, name := range honest {
			if !b.isReady(name, "1")() {
				b.Errorf("%s is not ready any more", name)
			}
		}
	})
}

// owner returns the Kyma that has a cluster. Two of them end the test.
func (b *bubble) owner(kymas []string, there *cluster) (owner string) {
	b.Helper()
	for _, name := range kymas {
		if b.kyma(name).Status.State != v1beta2.Ready {
			continue
		}
		if owner != "" {
			b.Fatalf("%s and %s have cluster %s", owner, name, there.name)
		}
		owner = name
	}
	return owner
}

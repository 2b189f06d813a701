package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// roll brings the pods of a Deployment one step nearer to its template, and writes its status.
// There is at most one surplus pod, and never one ready pod fewer than wanted. With maxSurge 0
// there is no surplus pod, and one ready pod fewer.
func (n *Node) roll(ctx context.Context, deployment *appsv1.Deployment) error {
	if deployment.DeletionTimestamp != nil {
		return nil
	}

	hash := templateHash(&deployment.Spec.Template)
	wanted := int(*deployment.Spec.Replicas)
	if n.program(deployment.Spec.Template.Spec.Containers[0].Image) == "" {
		return n.report(ctx, deployment, wanted, wanted, wanted)
	}

	current, old := n.podsOf(deployment, hash)
	surplus := 1
	fewer := 0
	if rolling := deployment.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxSurge.String() == "0" {
		surplus = 0
		fewer = 1
	}
	switch {
	case n.isBroken(deployment):
		for _, p := range slices.Concat(current, old) {
			p.end()
		}
	case len(current) < wanted && len(current)+len(old) < wanted+surplus && n.hasRoom(&deployment.Spec.Template.Spec):
		name := fmt.Sprintf("%s-%s-%s", deployment.Name, hash, rand.String(5))
		p, err := n.newPod(client.ObjectKeyFromObject(deployment), name, hash, &deployment.Spec.Template)
		if n.noteRefusal(err) {
			return nil // It is tried again.
		}
		if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return err // Its account is missing, say: it is tried again.
		}
		if err != nil {
			n.errorf("Deployment %s: %v", deployment.Name, err)
			return nil
		}

		n.add(p)
	case len(current) > wanted:
		current[0].end()
	case len(old) > 0 && len(old)+ready(current)+fewer > wanted &&
		(!old[0].now().Ready || ready(current)+ready(old)+fewer > wanted):
		old[0].end()
	}

	current, old = n.podsOf(deployment, hash)
	return n.report(ctx, deployment, len(current)+len(old), len(current), ready(current)+ready(old))
}

// podsOf returns the pods of the template with that hash, and the pods of older templates. Pods
// that end are left out.
func (n *Node) podsOf(deployment *appsv1.Deployment, hash string) (current, old []*pod) {
	for _, p := range n.running() {
		switch {
		case p.owner != client.ObjectKeyFromObject(deployment) || p.now().Ending:
		case p.hash == hash:
			current = append(current, p)
		default:
			old = append(old, p)
		}
	}
	return current, old
}

func templateHash(template *corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // It came as JSON.
	}
	return fmt.Sprintf("%.4x", sha256.Sum256(text))
}

func ready(pods []*pod) (count int) {
	for _, p := range pods {
		if p.now().Ready {
			count++
		}
	}
	return count
}

// StatusOf returns the status of a Deployment with the given numbers of pods: all pods, the pods of
// the current template, and the available pods of the current template.
func StatusOf(deployment *appsv1.Deployment, replicas, current, available int32) appsv1.DeploymentStatus {
	status := appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: replicas, UpdatedReplicas: current,
		ReadyReplicas: available, AvailableReplicas: available,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	if available > 0 {
		status.Conditions = append(status.Conditions,
			appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue})
	}
	return status
}

// report writes the status of a Deployment when it has changed.
func (n *Node) report(ctx context.Context, deployment *appsv1.Deployment, replicas, current, available int) error {
	status := StatusOf(deployment, int32(replicas), int32(current), int32(available))
	if equality.Semantic.DeepEqual(deployment.Status, status) {
		return nil
	}

	updated := deployment.DeepCopy()
	updated.Status = status
	return ignoreRaces(n.plane.Client.Status().Update(ctx, updated))
}

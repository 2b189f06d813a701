package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hashDigits is how much of the hash of a template is in the names of its pods.
const hashDigits = 8

// scale brings the pods of a Deployment nearer to what is wanted, as a rolling update does.
func (n *Node) scale(deployment *appsv1.Deployment) {
	owner := client.ObjectKeyFromObject(deployment)
	hash := templateHash(&deployment.Spec.Template)
	wanted := int(*deployment.Spec.Replicas)
	surge, missing := bounds(deployment, wanted)

	var current, old []*pod

	for _, p := range n.podsOf(owner) {
		switch {
		case p.isEnding():
		case p.template == hash:
			current = append(current, p)
		default:
			old = append(old, p)
		}
	}

	for len(current) < wanted && len(current)+len(old) < wanted+surge {
		p, err := n.newPod(owner, hash, fmt.Sprintf("%s-%s-%s", owner.Name, hash, rand.String(5)), &deployment.Spec.Template)
		if err != nil {
			n.t.Errorf("Deployment %s: %v", owner, err)

			return
		}

		n.running = append(n.running, p)
		current = append(current, p)
	}

	for _, p := range slices.Concat(current[min(wanted, len(current)):], old) {
		if !p.isReady() || ready(current)+ready(old) > wanted-missing || len(current) > wanted {
			p.end()

			current = slices.DeleteFunc(current, (*pod).isEnding)
			old = slices.DeleteFunc(old, (*pod).isEnding)
		}
	}
}

func templateHash(template *corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // What came in JSON can be JSON.
	}

	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:])[:hashDigits]
}

func bounds(deployment *appsv1.Deployment, wanted int) (surge, missing int) {
	quarter := intstr.FromString("25%")
	maxSurge, maxUnavailable := &quarter, &quarter

	if rolling := deployment.Spec.Strategy.RollingUpdate; rolling != nil {
		maxSurge, maxUnavailable = rolling.MaxSurge, rolling.MaxUnavailable
	}

	surge, _ = intstr.GetScaledValueFromIntOrPercent(maxSurge, wanted, true) // The API server has checked them.
	missing, _ = intstr.GetScaledValueFromIntOrPercent(maxUnavailable, wanted, false)

	return surge, missing
}

func ready(pods []*pod) (count int) {
	for _, p := range pods {
		if p.isReady() && !p.isEnding() {
			count++
		}
	}

	return count
}

func (n *Node) podsOf(owner types.NamespacedName) (pods []*pod) {
	for _, p := range n.running {
		if p.owner == owner {
			pods = append(pods, p)
		}
	}

	return pods
}

// tell writes the status of a Deployment when it has changed.
func (n *Node) tell(ctx context.Context, deployment *appsv1.Deployment) error {
	hash := templateHash(&deployment.Spec.Template)
	status := appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation}

	for _, p := range n.podsOf(client.ObjectKeyFromObject(deployment)) {
		if p.isEnding() {
			continue
		}

		status.Replicas++

		if p.template == hash {
			status.UpdatedReplicas++
		}

		if p.isReady() {
			status.ReadyReplicas++
			status.AvailableReplicas++
		}
	}

	status.UnavailableReplicas = max(0, *deployment.Spec.Replicas-status.AvailableReplicas)
	status.Conditions = conditions(deployment, &status)

	if same(deployment.Status, status) {
		return nil
	}

	updated := deployment.DeepCopy()
	updated.Status = status

	return n.plane.Client.Status().Update(ctx, updated)
}

func conditions(deployment *appsv1.Deployment, status *appsv1.DeploymentStatus) []appsv1.DeploymentCondition {
	_, missing := bounds(deployment, int(*deployment.Spec.Replicas))
	available := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "MinimumReplicasUnavailable",
	}

	if int(status.AvailableReplicas) >= int(*deployment.Spec.Replicas)-missing {
		available.Status, available.Reason = corev1.ConditionTrue, "MinimumReplicasAvailable"
	}

	progressing := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated",
	}

	if status.UpdatedReplicas == *deployment.Spec.Replicas && status.AvailableReplicas == status.UpdatedReplicas {
		progressing.Reason = "NewReplicaSetAvailable"
	}

	list := []appsv1.DeploymentCondition{available, progressing}

	for i := range list {
		list[i].LastTransitionTime, list[i].LastUpdateTime = metav1.Now(), metav1.Now()
	}

	return list
}

// same leaves out when conditions have changed.
func same(a, b appsv1.DeploymentStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.Replicas == b.Replicas && a.UpdatedReplicas == b.UpdatedReplicas &&
		a.AvailableReplicas == b.AvailableReplicas && a.ReadyReplicas == b.ReadyReplicas &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(a, b appsv1.DeploymentCondition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
		})
}

// ignoreRaces leaves out what comes of a cache that is a moment behind: the next round gets it right.
func ignoreRaces(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}

	return err
}

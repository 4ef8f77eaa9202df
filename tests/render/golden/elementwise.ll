define void @elementwise_0(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %v1 = getelementptr ptr, ptr %args, i64 0
  %v2 = load ptr, ptr %v1, align 8
  %v9 = getelementptr ptr, ptr %args, i64 1
  %v10 = load ptr, ptr %v9, align 8
  br label %loop1
loop1:
  %i_2.16 = phi i64 [ 0, %entry ], [ %i_2.16.next, %loop1 ]
  %v3 = getelementptr float, ptr %v2, i64 %i_2.16
  %v4 = load <16 x float>, ptr %v3, align 4
  %v5 = fmul <16 x float> %v4, splat (float 0x4000000000000000)
  %v6 = fcmp ogt <16 x float> zeroinitializer, %v5
  %v7 = select <16 x i1> %v6, <16 x float> zeroinitializer, <16 x float> %v5
  %v8 = fadd <16 x float> %v7, splat (float 0x3FF0000000000000)
  %v11 = getelementptr float, ptr %v10, i64 %i_2.16
  store <16 x float> %v8, ptr %v11, align 4
  %i_2.16.sum = add i64 %i_2.16, 16
  %i_2.16.next = freeze i64 %i_2.16.sum
  %i_2.more = icmp ult i64 %i_2.16.next, 96
  br i1 %i_2.more, label %loop1, label %after2
after2:
  %v12 = getelementptr float, ptr %v2, i64 96
  %v13 = load <4 x float>, ptr %v12, align 4
  %v14 = fmul <4 x float> %v13, splat (float 0x4000000000000000)
  %v15 = fcmp ogt <4 x float> zeroinitializer, %v14
  %v16 = select <4 x i1> %v15, <4 x float> zeroinitializer, <4 x float> %v14
  %v17 = fadd <4 x float> %v16, splat (float 0x3FF0000000000000)
  %v18 = getelementptr float, ptr %v10, i64 96
  store <4 x float> %v17, ptr %v18, align 4
  ret void
}
